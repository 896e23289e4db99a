/* An NVML of our own: it exports the symbols that the probe calls and reads its world from a text file, named by
 * FAKE_NVML_CONTROL, which a test may rewrite at any time. Lines:
 *
 *   init CODE                               what nvmlInit returns (0: success)
 *   gpu UUID|name|total_mb|used_mb|utilization|temperature|power_mw|CODE
 *                                           CODE: every question about this card is answered with it (0: none)
 *   proc UUID|pid|used_mb|kind              kind: C compute, G graphics, M MPS client; used_mb -1: not available
 *   fail FUNCTION CODE                      this function fails with CODE
 *   ecc UUID|count                          memory errors that could not be corrected (no line: not supported)
 *   limit UUID|celsius                      where the card slows itself down (no line: not supported)
 *   xid UUID|number|code                    an event, handed out once; number makes equal ones differ
 *
 * As in the real library, cards are enumerated by nvmlInit: one that leaves later is lost until the next nvmlInit.
 * Compiled with -DOLD_DRIVER the newer symbols are missing. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, UNKNOWN = 999 };

typedef struct {
  char uuid[96], name[96];
  long long total_mb, used_mb;
  int utilization, temperature, power_mw, code;
} Card;
typedef struct {
  char uuid[96], kind;
  unsigned pid;
  long long used_mb;
} Proc;
typedef struct {
  char function[96];
  int code;
} Fail;
typedef struct {
  char uuid[96];
  unsigned long long number, code;
} Fact;
typedef struct {
  int init_code, cards, procs, fails, eccs, limits, xids;
  Fact ecc[MOST], limit[MOST], xid[MOST];
  Card card[MOST];
  Proc proc[MOST * 4];
  Fail fail[MOST];
} World;

typedef struct {
  char uuid[96];
} Slot;
typedef Slot *Device;

static Slot slots[MOST];
static int slot_count, started;

static void read_world(World *world) {
  char line[512], kind[8];
  memset(world, 0, sizeof *world);
  const char *path = getenv("FAKE_NVML_CONTROL");
  FILE *file = path ? fopen(path, "r") : NULL;
  if (!file) {
    world->init_code = 9;
    return;
  }
  while (fgets(line, sizeof line, file)) {
    Card *card = &world->card[world->cards];
    Proc *proc = &world->proc[world->procs];
    Fail *fail = &world->fail[world->fails];
    if (sscanf(line, "init %d", &world->init_code) == 1) continue;
    if (world->cards < MOST &&
        sscanf(line, "gpu %95[^|]|%95[^|]|%lld|%lld|%d|%d|%d|%d", card->uuid, card->name, &card->total_mb, &card->used_mb,
               &card->utilization, &card->temperature, &card->power_mw, &card->code) == 8)
      world->cards++;
    if (world->procs < MOST * 4 &&
        sscanf(line, "proc %95[^|]|%u|%lld|%7s", proc->uuid, &proc->pid, &proc->used_mb, kind) == 4) {
      proc->kind = kind[0];
      world->procs++;
    }
    Fact *ecc = &world->ecc[world->eccs], *limit = &world->limit[world->limits], *xid = &world->xid[world->xids];
    if (world->eccs < MOST && sscanf(line, "ecc %95[^|]|%llu", ecc->uuid, &ecc->number) == 2) world->eccs++;
    if (world->limits < MOST && sscanf(line, "limit %95[^|]|%llu", limit->uuid, &limit->number) == 2) world->limits++;
    if (world->xids < MOST && sscanf(line, "xid %95[^|]|%llu|%llu", xid->uuid, &xid->number, &xid->code) == 3) world->xids++;
    if (world->fails < MOST && sscanf(line, "fail %95s %d", fail->function, &fail->code) == 2) world->fails++;
  }
  fclose(file);
}

static int look(const char *function, Device device, World *world, Card **card) {
  if (!started) return UNINITIALIZED;
  read_world(world);
  for (int i = 0; i < world->fails; i++)
    if (!strcmp(world->fail[i].function, function)) return world->fail[i].code;
  if (!device) return OK;
  for (int i = 0; i < world->cards; i++)
    if (!strcmp(world->card[i].uuid, device->uuid)) {
      *card = &world->card[i];
      return world->card[i].code;
    }
  return LOST;
}

int nvmlInitWithFlags(unsigned flags) {
  static World world;
  (void)flags;
  read_world(&world);
  if (world.init_code) return world.init_code;
  slot_count = world.cards;
  for (int i = 0; i < world.cards; i++) strcpy(slots[i].uuid, world.card[i].uuid);
  started = 1;
  return OK;
}

int nvmlShutdown(void) {
  if (!started) return UNINITIALIZED;
  started = 0;
  return OK;
}

const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "some error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
  static World world;
  int code = look("nvmlDeviceGetCount_v2", NULL, &world, NULL);
  *count = (unsigned)slot_count;
  return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
  static World world;
  Card *card;
  if (index >= (unsigned)slot_count) return INVALID;
  *device = &slots[index];
  int code = look("nvmlDeviceGetHandleByIndex_v2", *device, &world, &card);
  return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
  static World world;
  Card *card;
  if (!started) return UNINITIALIZED;
  for (int i = 0; i < slot_count; i++)
    if (!strcmp(slots[i].uuid, uuid)) {
      *device = &slots[i];
      return look("nvmlDeviceGetHandleByUUID", *device, &world, &card);
    }
  return NOT_FOUND;
}

static int text(const char *function, Device device, char *out, unsigned size, int name) {
  static World world;
  Card *card;
  int code = look(function, device, &world, &card);
  if (!code) snprintf(out, size, "%s", name ? card->name : card->uuid);
  return code;
}

int nvmlDeviceGetName(Device device, char *out, unsigned size) { return text("nvmlDeviceGetName", device, out, size, 1); }
int nvmlDeviceGetUUID(Device device, char *out, unsigned size) { return text("nvmlDeviceGetUUID", device, out, size, 0); }

typedef struct {
  unsigned long long total, free, used;
} Memory;

int nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
  static World world;
  Card *card;
  int code = look("nvmlDeviceGetMemoryInfo", device, &world, &card);
  if (code) return code;
  memory->total = (unsigned long long)card->total_mb << 20;
  memory->used = (unsigned long long)card->used_mb << 20;
  memory->free = memory->total - memory->used;
  return OK;
}

int nvmlDeviceGetUtilizationRates(Device device, unsigned rates[2]) {
  static World world;
  Card *card;
  int code = look("nvmlDeviceGetUtilizationRates", device, &world, &card);
  if (!code) rates[0] = (unsigned)card->utilization;
  return code;
}

int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *celsius) {
  static World world;
  Card *card;
  (void)sensor;
  int code = look("nvmlDeviceGetTemperature", device, &world, &card);
  if (!code) *celsius = (unsigned)card->temperature;
  return code;
}

int nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts) {
  static World world;
  Card *card;
  int code = look("nvmlDeviceGetPowerUsage", device, &world, &card);
  if (!code) *milliwatts = (unsigned)card->power_mw;
  return code;
}

typedef struct {
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute_instance;
} Process;

static int processes(const char *function, char kind, Device device, unsigned *count, Process *out) {
  static World world;
  Card *card;
  unsigned found = 0, room = *count;
  int code = look(function, device, &world, &card);
  if (code) return code;
  for (int i = 0; i < world.procs; i++) {
    Proc *proc = &world.proc[i];
    if (proc->kind != kind || strcmp(proc->uuid, device->uuid)) continue;
    if (out && found < room) {
      out[found].pid = proc->pid;
      out[found].used = proc->used_mb < 0 ? ~0ULL : (unsigned long long)proc->used_mb << 20;
      out[found].instance = out[found].compute_instance = ~0U;
    }
    found++;
  }
  *count = found;
  return found > room ? TOO_SMALL : OK;
}

#define PROCESSES(NAME, KIND)                                            \
  int NAME(Device device, unsigned *count, Process *out) {               \
    return processes(#NAME, KIND, device, count, out);                   \
  }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G')

static int told(const char *function, Device device, int limits, unsigned long long *number) {
  static World world;
  Card *card;
  int code = look(function, device, &world, &card);
  if (code) return code;
  Fact *facts = limits ? world.limit : world.ecc;
  for (int i = 0; i < (limits ? world.limits : world.eccs); i++)
    if (!strcmp(facts[i].uuid, device->uuid)) {
      *number = facts[i].number;
      return OK;
    }
  return NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEccErrors(Device device, int type, int counter, unsigned long long *count) {
  if (type != 1 || counter != 0) return INVALID; /* uncorrected, since the driver was loaded */
  return told("nvmlDeviceGetTotalEccErrors", device, 0, count);
}

int nvmlDeviceGetTemperatureThreshold(Device device, int threshold, unsigned *celsius) {
  unsigned long long number = 0;
  if (threshold != 1) return INVALID; /* slowdown */
  int code = told("nvmlDeviceGetTemperatureThreshold", device, 1, &number);
  *celsius = (unsigned)number;
  return code;
}

typedef struct {
  Device device;
  unsigned long long type, data;
  unsigned instance, compute_instance;
} EventData;

static int registered[MOST], event_sets;
static Fact handed_out[MOST * 4];
static int handed_count;

int nvmlEventSetCreate(void **set) {
  if (!started) return UNINITIALIZED;
  *set = &event_sets;
  event_sets++;
  return OK;
}

int nvmlEventSetFree(void *set) {
  (void)set;
  memset(registered, 0, sizeof registered);
  return OK;
}

int nvmlDeviceRegisterEvents(Device device, unsigned long long types, void *set) {
  static World world;
  Card *card;
  int code = look("nvmlDeviceRegisterEvents", device, &world, &card);
  if (code) return code;
  if (set != &event_sets || types != 8) return INVALID;
  registered[device - slots] = 1;
  return OK;
}

int nvmlEventSetWait_v2(void *set, EventData *data, unsigned milliseconds) {
  static World world;
  (void)milliseconds;
  if (!started || set != &event_sets) return INVALID;
  read_world(&world);
  for (int i = 0; i < world.xids; i++) {
    Fact *xid = &world.xid[i];
    int seen = 0;
    for (int j = 0; j < handed_count; j++)
      seen |= handed_out[j].number == xid->number && !strcmp(handed_out[j].uuid, xid->uuid);
    for (int slot = 0; slot < slot_count && !seen; slot++)
      if (registered[slot] && !strcmp(slots[slot].uuid, xid->uuid)) {
        if (handed_count < MOST * 4) handed_out[handed_count++] = *xid;
        data->device = &slots[slot];
        data->type = 8;
        data->data = xid->code;
        return OK;
      }
  }
  return TIMEOUT;
}

#ifndef OLD_DRIVER
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')

typedef struct {
  unsigned version;
  unsigned long long total, reserved, free, used;
} MemoryV2;

int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory) {
  static World world;
  Card *card;
  int code = look("nvmlDeviceGetMemoryInfo_v2", device, &world, &card);
  if (code) return code;
  if (memory->version != 0x02000028) return 25;
  memory->total = (unsigned long long)card->total_mb << 20;
  memory->used = (unsigned long long)card->used_mb << 20;
  memory->reserved = 300ULL << 20;
  memory->free = memory->total - memory->used - memory->reserved;
  return OK;
}

typedef struct {
  unsigned version, sensor;
  int temperature;
} Temperature;

int nvmlDeviceGetTemperatureV(Device device, Temperature *temperature) {
  static World world;
  Card *card;
  int code = look("nvmlDeviceGetTemperatureV", device, &world, &card);
  if (!code) temperature->temperature = card->temperature;
  return code;
}
#endif
