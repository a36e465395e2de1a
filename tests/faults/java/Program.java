// A Kafka Streams program that runs until it is killed, exactly once.

import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

final class Program {
    private Program() {}

    static void run(StreamsBuilder builder, Properties settings) {
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(fault -> {
            System.out.println("fault " + fault);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        Runtime.getRuntime().addShutdownHook(
            new Thread(() -> streams.close(Duration.ofSeconds(30))));
        streams.start();
    }

    static Properties settings(String id, String bootstrap, String state) {
        Properties words = new Properties();
        words.put("application.id", id);
        words.put("bootstrap.servers", bootstrap);
        words.put("state.dir", state);
        words.put("processing.guarantee", "exactly_once_v2");
        words.put("replication.factor", 1);
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
