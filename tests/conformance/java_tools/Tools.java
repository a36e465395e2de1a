// Kafka's own command-line tools, one after the other in one JVM, since a JVM takes long to start.
//
// An order is a JSON line {"do": "run", "tool": its class, "words": [...], "given": its stdin}, and
// the answer tells {"code", "printed", "complained"}.  ../java_client.py compiles it.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

public final class Tools {
    /** What a tool that wants to end its process gets instead; some print it, so it says little. */
    @SuppressWarnings("serial")
    private static final class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    /** One tool's life: what it printed until it wanted to end, and the code it wanted to end with. */
    private static final class Life {
        final ByteArrayOutputStream printed = new ByteArrayOutputStream();
        final ByteArrayOutputStream complained = new ByteArrayOutputStream();
        final List<Runnable> hooks = new ArrayList<>();
        Map<String, Object> told;

        void end(int code) {
            if (told == null) {
                told = Map.of();
                // What a process does when it ends, and this one does not.
                hooks.forEach(Runnable::run);
                told = Map.of(
                    "code", code,
                    "printed", printed.toString(StandardCharsets.UTF_8),
                    "complained", complained.toString(StandardCharsets.UTF_8));
            }
        }
    }

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = System.out;
    private static final InputStream IN = System.in;
    private static volatile Life life;

    private Tools() {}

    public static void main(String[] arguments) throws Exception {
        Exit.Procedure ended = (code, message) -> {
            life.end(code);
            throw new Ended();
        };
        Exit.setExitProcedure(ended);
        Exit.setHaltProcedure(ended);
        Exit.setShutdownHookAdder((name, hook) -> life.hooks.add(hook));
        try (BufferedReader lines =
                new BufferedReader(new InputStreamReader(IN, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                OUT.println(JSON.writeValueAsString(Map.of("answer", run(JSON.readTree(line)))));
                OUT.flush();
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> run(JsonNode order) throws Exception {
        List<String> words = new ArrayList<>();
        order.get("words").forEach(word -> words.add(word.asText()));
        life = new Life();
        System.setOut(new PrintStream(life.printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(life.complained, true, StandardCharsets.UTF_8));
        byte[] given = order.get("given").asText().getBytes(StandardCharsets.UTF_8);
        System.setIn(new ByteArrayInputStream(given));
        live(order.get("tool").asText(), words.toArray(new String[0]));
        return life.told;
    }

    private static void live(String tool, String[] words) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) words);
            life.end(0);
        } catch (InvocationTargetException fault) {
            fault.getCause().printStackTrace();
            // As the JVM itself does with what nobody catches; nothing, if it wanted to end.
            life.end(1);
        }
    }
}
