package headrace.bench.flink;

import java.util.Set;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.ConfigOptions;
import org.apache.flink.configuration.ReadableConfig;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.ProviderContext;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkV2Provider;
import org.apache.flink.table.connector.source.DataStreamScanProvider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.abilities.SupportsProjectionPushDown;
import org.apache.flink.table.connector.source.abilities.SupportsWatermarkPushDown;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DynamicTableFactory;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;

/** The connector 'headrace': source tables over streams of the driver, and sink tables that send counts to the collector. */
public final class Tables implements DynamicTableSourceFactory, DynamicTableSinkFactory {
    private static final ConfigOption<String> ADDRESS = ConfigOptions.key("address").stringType().noDefaultValue();
    private static final ConfigOption<String> STREAM = ConfigOptions.key("stream").stringType().noDefaultValue();
    private static final ConfigOption<String> GROUP = ConfigOptions.key("group").stringType().noDefaultValue();
    private static final ConfigOption<Integer> PARTITIONS = ConfigOptions.key("partitions").intType().noDefaultValue();
    private static final ConfigOption<String> QUERY = ConfigOptions.key("query").stringType().noDefaultValue();

    @Override
    public String factoryIdentifier() {
        return "headrace";
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of(ADDRESS);
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of(STREAM, GROUP, PARTITIONS, QUERY);
    }

    @Override
    public DynamicTableSource createDynamicTableSource(DynamicTableFactory.Context context) {
        var options = FactoryUtil.createTableFactoryHelper(this, context).getOptions();
        return new StreamTable(options, context.getPhysicalRowDataType(), WatermarkStrategy.noWatermarks());
    }

    @Override
    public DynamicTableSink createDynamicTableSink(DynamicTableFactory.Context context) {
        var options = FactoryUtil.createTableFactoryHelper(this, context).getOptions();
        return new ResultTable(new CollectorSink(options.get(ADDRESS), options.get(QUERY)));
    }

    private static final class StreamTable implements ScanTableSource, SupportsWatermarkPushDown, SupportsProjectionPushDown {
        private final ReadableConfig options;
        private DataType row;
        private WatermarkStrategy<RowData> watermarks;

        StreamTable(ReadableConfig options, DataType row, WatermarkStrategy<RowData> watermarks) {
            this.options = options;
            this.row = row;
            this.watermarks = watermarks;
        }

        @Override
        public boolean supportsNestedProjection() {
            return false;
        }

        @Override
        public void applyProjection(int[][] columns, DataType projected) {
            row = projected;
        }

        @Override
        public void applyWatermark(WatermarkStrategy<RowData> strategy) {
            watermarks = strategy;
        }

        @Override
        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        @Override
        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            RowType type = (RowType) row.getLogicalType();
            var source = new DriverSource(
                    options.get(ADDRESS), options.get(STREAM), options.get(GROUP), options.get(PARTITIONS), Columns.of(type));
            return new DataStreamScanProvider() {
                @Override
                public DataStream<RowData> produceDataStream(ProviderContext provider, StreamExecutionEnvironment environment) {
                    return environment.fromSource(source, watermarks, options.get(STREAM), InternalTypeInfo.of(type));
                }

                @Override
                public boolean isBounded() {
                    return false;
                }
            };
        }

        @Override
        public DynamicTableSource copy() {
            return new StreamTable(options, row, watermarks);
        }

        @Override
        public String asSummaryString() {
            return "headrace driver";
        }
    }

    private record ResultTable(CollectorSink sink) implements DynamicTableSink {
        @Override
        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            return requested;
        }

        @Override
        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            return SinkV2Provider.of(sink);
        }

        @Override
        public DynamicTableSink copy() {
            return this;
        }

        @Override
        public String asSummaryString() {
            return "headrace collector";
        }
    }
}
