// What a task used, or uses so far, against what it asked for.
import { megabytes, percent } from "../format";
import { duration, t, told } from "../i18n";
import type { Task } from "../types";
import { Facts } from "../ui/parts";

export function Used({ task }: { task: Task }) {
  const used = task.usage;
  if (!used) return null;
  const rows: [string, preact.ComponentChildren][] = [
    [t("used.gpu"), used.gpu_percent === null ? null : t("used.gpuPercent", { mean: used.gpu_percent, p95: used.gpu_percent_p95 ?? used.gpu_percent })],
    [t("used.gpuMemory"), used.gpu_peak_mb ? against(used.gpu_peak_mb, task.gpu_memory_mb) : null],
    [t("used.cpu"), used.cpu_seconds === null ? null : cpu(used.cpu_seconds, used.cpu_efficiency_percent)],
    [t("used.memory"), used.rss_peak_mb ? against(used.rss_peak_mb, task.ram_mb) : null],
    [t("used.waited"), used.wait_seconds === null ? null : duration(used.wait_seconds * 1_000)],
    [t("used.ran"), used.run_seconds === null ? null : duration(used.run_seconds * 1_000)],
    [
      t("used.advice"),
      used.advice.length
        ? used.advice.map((each) => (
            <div key={each.code} data-testid="advice">
              {told("advice", each.code, each.facts, each.detail)}
            </div>
          ))
        : null,
    ],
  ];
  return (
    <section class="card" aria-label={t("used.title")} data-testid="used">
      <header>
        <h2>{t("used.title")}</h2>
        {used.so_far ? <span class="muted">{t("used.soFar")}</span> : null}
      </header>
      <Facts rows={rows} />
    </section>
  );
}

/** Both in the same unit: 5.9 of 24.0 GB would hide which number has which unit. */
function against(usedMb: number, askedMb: number): string {
  return askedMb ? t("used.of", { used: megabytes(usedMb), asked: megabytes(askedMb), share: percent(usedMb / askedMb) }) : megabytes(usedMb);
}

function cpu(seconds: number, efficiency: number | null): string {
  const time = duration(seconds * 1_000);
  return efficiency === null ? time : t("used.cpuOf", { time, share: `${efficiency} %` });
}
