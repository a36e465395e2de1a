// Joins two topics in a window, and adds up the amounts of users by team, with Kafka Streams.
//
// The join's window stores and the table's stores have changelogs and standby replicas, which take
// over when the process that has the store is killed.

import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;

public final class JoinAndSums {
    private JoinAndSums() {}

    /** Arguments: bootstrap, state directory, left, right and users topics, joined, sums. */
    public static void main(String[] arguments) {
        StreamsBuilder builder = new StreamsBuilder();
        Consumed<String, String> text = Consumed.with(Serdes.String(), Serdes.String());
        KStream<String, String> left = builder.stream(arguments[2], text);
        KStream<String, String> right = builder.stream(arguments[3], text);
        left.join(
                right,
                (one, other) -> one + " " + other,
                JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofHours(1)),
                StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()))
            .to(arguments[5], Produced.with(Serdes.String(), Serdes.String()));
        builder.table(arguments[4], text)
            .groupBy(
                (user, entry) -> KeyValue.pair(team(entry), amount(entry)),
                Grouped.with(Serdes.String(), Serdes.Long()))
            .aggregate(
                () -> 0L,
                (team, amount, sum) -> sum + amount,
                (team, amount, sum) -> sum - amount,
                Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream()
            .to(arguments[6], Produced.with(Serdes.String(), Serdes.Long()));
        Properties words = Program.settings("join-and-sums", arguments[0], arguments[1]);
        words.put("num.stream.threads", 1);
        words.put("num.standby.replicas", 1);
        Program.run(builder, words);
    }

    private static String team(String entry) {
        return entry.split(" ")[0];
    }

    private static Long amount(String entry) {
        return Long.valueOf(entry.split(" ")[1]);
    }
}
