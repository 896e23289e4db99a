// What a card or a node measured, as two charts.
import { t } from "../i18n";
import type { NodeHistory } from "../types";
import { Chart } from "./chart";

export type Readings = Pick<NodeHistory, "times" | "utilization_percent" | "memory_used_mb" | "memory_reserved_mb" | "temperature_c">;

export function ReadingCharts({ told, height }: { told: Readings; height: number }) {
  return (
    <>
      <Chart
        label={t("gpu.util")}
        times={told.times}
        most={100}
        height={height}
        lines={[
          { label: `${t("gpu.util")} %`, colour: "blue", values: told.utilization_percent, fill: true },
          { label: `${t("gpu.temp")} °C`, colour: "orange", values: told.temperature_c },
        ]}
      />
      <Chart
        label={t("gpu.memory")}
        times={told.times}
        height={height}
        unit=" GB"
        lines={[
          { label: t("gpu.memObserved"), colour: "green", values: gigabytes(told.memory_used_mb), fill: true },
          { label: t("gpu.memReserved"), colour: "violet", values: gigabytes(told.memory_reserved_mb), dash: true },
        ]}
      />
    </>
  );
}

function gigabytes(values: (number | null)[]): (number | null)[] {
  return values.map((mb) => (mb === null ? null : mb / 1_024));
}
