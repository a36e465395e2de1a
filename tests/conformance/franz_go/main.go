// franz-go as a program over JSON lines; ../driven.py lists its commands and their results.
//
// ../go_client.py builds and starts it.  Commands are executed one after the other; a stream sends
// in goroutines of its own.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
)

// A line may hold a record of ten megabytes.
const lineBytesMax = 64 << 20

// command is a command line: the union of the arguments of all commands.
type command struct {
	Do        string            `json:"do"`
	Bootstrap string            `json:"bootstrap"`
	Topic     string            `json:"topic"`
	Partition int32             `json:"partition"`
	Records   []json.RawMessage `json:"records"`
	Start     json.RawMessage   `json:"start"`
	Count     *int              `json:"count"`
	Settings  map[string]string `json:"settings"`

	Partitions int `json:"partitions"`

	ID        string `json:"id"`
	TimeoutMs int    `json:"timeout_ms"`
	Commit    bool   `json:"commit"`
	Group     string `json:"group"`
	Source    string `json:"source"`
	Sink      string `json:"sink"`
	How       string `json:"how"`
}

var commands = map[string]func(command) (any, error){
	"produce":  produce,
	"consume":  consume,
	"stream":   startStream,
	"unstream": endStream,
	"init":     initTransactions,
	"begin":    begin,
	"send":     send,
	"end":      end,
	"retire":   retire,
	"copy":     copyRecords,
}

var output struct {
	sync.Mutex
	*json.Encoder
}

func main() {
	output.Encoder = json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		var given command
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			say("refused", refusal(err))
			continue
		}
		run, known := commands[given.Do]
		if !known {
			say("refused", refusal(fmt.Errorf("unknown command %q", given.Do)))
			continue
		}
		if result, err := run(given); err != nil {
			say("refused", refusal(err))
		} else {
			say("answer", result)
		}
	}
}

func say(what string, content any) {
	output.Lock()
	defer output.Unlock()
	if err := output.Encode(map[string]any{what: content}); err != nil {
		panic(err)
	}
}

func refusal(err error) map[string]any {
	var code any
	if known := new(kerr.Error); errors.As(err, &known) {
		code = known.Code
	}
	return map[string]any{"code": code, "text": err.Error()}
}

// raw returns the bytes of a text whose characters are 0 to 255.
func raw(told *string) []byte {
	if told == nil {
		return nil
	}
	content := make([]byte, 0, len(*told))
	for _, character := range *told {
		content = append(content, byte(character))
	}
	return content
}

// text is the reverse of raw.
func text(content []byte) *string {
	if content == nil {
		return nil
	}
	characters := make([]rune, len(content))
	for i, each := range content {
		characters[i] = rune(each)
	}
	told := string(characters)
	return &told
}
