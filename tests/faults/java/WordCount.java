// Counts words with Kafka Streams, exactly once: words of one topic, their counts in another.
//
// Words pass through a repartition topic, and their counts are in a RocksDB store with a changelog.
// Every change of a count is written, so that the output of a word must be 1, 2, 3 …

import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
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
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(arguments));
        streams.setUncaughtExceptionHandler(fault -> {
            System.out.println("fault " + fault);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        Runtime.getRuntime().addShutdownHook(
            new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
    }

    private static Properties settings(String[] arguments) {
        Properties words = new Properties();
        words.put("application.id", "word-count");
        words.put("bootstrap.servers", arguments[0]);
        words.put("state.dir", arguments[1]);
        words.put("processing.guarantee", "exactly_once_v2");
        words.put("replication.factor", 1);
        words.put("num.stream.threads", 2);
        words.put("commit.interval.ms", 100);
        words.put("statestore.cache.max.bytes", 0);
        words.put("default.key.serde", Serdes.StringSerde.class);
        words.put("default.value.serde", Serdes.StringSerde.class);
        words.put("consumer.session.timeout.ms", 6_000);
        words.put("consumer.heartbeat.interval.ms", 500);
        words.put("consumer.auto.offset.reset", "earliest");
        words.put("producer.transaction.timeout.ms", 10_000);
        return words;
    }
}
