// Counts words with Kafka Streams, exactly once: words of one topic, their counts in another.
//
// Words pass through a repartition topic, and their counts are in a RocksDB store with a changelog.
// Every change of a count is written, so that the output of a word must be 1, 2, 3 …

import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

public final class WordCount {
    private WordCount() {}

    /** Arguments: bootstrap, state directory, source topic, sink topic. */
    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[2], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.as("counts"))
            .toStream()
            .to(arguments[3], Produced.with(Serdes.String(), Serdes.Long()));
        Properties words = Program.settings("word-count", arguments[0], arguments[1]);
        words.put("num.stream.threads", 2);
        Program.run(builder, words);
    }
}
