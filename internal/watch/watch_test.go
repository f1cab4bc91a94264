package watch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/live"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
)

// claimOnly is a Proxmox that has at most a claim.
type claimOnly struct {
	pipeline.Listing
	claim *claim.State
	down  error
}

func (c *claimOnly) VMConfig(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	if c.claim == nil {
		return cluster.VM{}, errors.Join(c.down, cluster.ErrNotFound)
	}
	description, err := c.claim.Description()
	return cluster.VM{ID: id, Name: "recast-claim", Config: map[string]string{"description": description}}, errors.Join(c.down, err)
}

func (c *claimOnly) VMs(ctx context.Context) ([]cluster.VM, error) {
	vm, err := c.VMConfig(ctx, 9089)
	if errors.Is(err, cluster.ErrNotFound) {
		return nil, c.down
	}
	return []cluster.VM{vm}, err
}

func (c *claimOnly) Listed(ctx context.Context) ([]cluster.VM, error) { return c.VMs(ctx) }

// beside is a watcher that has the journal of a run that was started here.
type beside struct {
	*Watcher
	t    *testing.T
	px   *claimOnly
	run  *journal.Journal
	from time.Time
}

const runHere = "20261121-0421-3f2a"

func watchBeside(t *testing.T, held *claim.State) *beside {
	t.Helper()
	p := pipeline.Project{Config: &config.Config{Dir: t.TempDir(), Cluster: "c1", Proxmox: config.Proxmox{VMIDs: config.VMIDRange{First: 9089, Last: 9099}}}}
	run := must.Get(journal.Open(filepath.Join(p.State(), "runs"), journal.Options{Run: runHere}))(t)
	t.Cleanup(func() { _ = run.Close() })
	out := must.Get(os.Create(filepath.Join(t.TempDir(), "tty")))(t)
	t.Cleanup(func() { _ = out.Close() })
	b := &beside{t: t, px: &claimOnly{claim: held}, run: run, from: time.Now().Add(time.Hour)}
	b.Watcher = &Watcher{p: p, px: p.Watched(b.px), view: live.NewView(out, "recast status --watch", false)}
	b.look = func(ctx context.Context) (res pipeline.StatusResult, err error) {
		claim, found, err := p.Claim(ctx, b.px)
		if found {
			res.Claim = &pipeline.ClaimHeld{State: claim, VMID: claim.VM.ID}
		}
		return res, err
	}
	return b
}

// logs lets the run of this machine write its log at a given second.
func (b *beside) logs(second int) {
	b.t.Helper()
	path := filepath.Join(b.p.State(), "runs", runHere, story.LogName)
	when := b.from.Add(time.Duration(second) * time.Second)
	must.Do(b.t, errors.Join(os.WriteFile(path, []byte("{}\n"), 0o600), os.Chtimes(path, when, when)))
}

func (b *beside) looks(second int) (last string) {
	b.t.Helper()
	b.now = b.from.Add(time.Duration(second) * time.Second)
	return must.Get(b.once(b.t.Context()))(b.t)
}

func (b *beside) wants(said string, texts ...string) {
	b.t.Helper()
	must.Contain(b.t, "what it says", said, texts...)
}

// A run that was killed here, and maybe finished elsewhere, does not hide a run of
// another machine; when that one dies, watch says so.
func TestWatchAnotherMachinesRun(t *testing.T) {
	t.Parallel()
	claim := &claim.State{Cluster: "c1", Run: "r2", Holder: claim.Holder{Host: "ci-7"}, Beat: 1}
	b := watchBeside(t, claim)
	claim.Since = b.from.Add(-10 * time.Minute)
	b.logs(-3600)
	b.looks(0)
	b.looks(1)
	must.Be(t, b.here.ID == "", "draws run %s", b.here.ID)
	b.wants(strings.Join(b.text, "\n"), "held by run r2 ")
	b.wants(b.Leaving(), "run r2 continues")

	b.looks(100)
	b.wants(b.looked(b.now), "ci-7", "its heartbeat has stood still for 1m40s", "recast roll takes over; Proxmox was read")
	b.wants(b.Leaving(), "run r2: ", "stood still")
	claim.Beat = 2
	b.looks(110)
	said := b.looked(b.now) + b.Leaving()
	must.Hold(t, !strings.Contains(said, "stood still"), "it lives: %s", said)

	b.logs(111) // someone continues it here
	b.looks(112)
	must.Hold(t, b.here.ID == runHere, "draws run %q", b.here.ID)
}

// A holder on this machine that is stopped is suspended, whether its run was started beside this recast.yaml or not.
func TestWatchASuspendedRun(t *testing.T) {
	t.Parallel()
	by := claim.Holder{Host: "here", Boot: "b", PID: 4711, Start: "7"}
	held := &claim.State{Cluster: "c1", Run: runHere, Holder: by, Beat: 1}
	b := watchBeside(t, held)
	held.Since = b.from
	stopped := true
	b.stopped = func(h claim.Holder) bool { return stopped && h == by }
	must.Do(t, b.run.Put(past.AboutKey, past.About{Command: "roll", By: by}))
	const says = "that run (pid 4711 on here) is suspended: fg in its terminal, or kill -CONT 4711, resumes it"
	b.logs(0)
	b.looks(5)
	b.wants(b.heartbeat(), says)
	b.wants(b.Leaving(), "run "+runHere+": "+says)
	stopped = false
	b.wants(b.Leaving(), "run "+runHere+" continues")
	held.Run, held.Since, stopped = "r2", b.from.Add(10*time.Second), true
	b.looks(30)
	b.looks(31)
	b.wants(b.looked(b.now), says+"; Proxmox was read")
}

// A run that keeps its claim in Kubernetes is alive as long as it writes its log.
func TestWatchWithoutClaim(t *testing.T) {
	t.Parallel()
	b := watchBeside(t, nil)
	b.logs(0)
	b.looks(20)
	b.wants(b.heartbeat(), "that run logged something 20s ago", "it may be in Kubernetes")
	b.wants(b.Leaving(), "run "+runHere+" continues")
	b.looks(100)
	b.wants(b.heartbeat(), "nothing was logged for 1m40s", "recast status says whether another machine finished it")
	b.wants(b.Leaving(), "run "+runHere+": nobody holds the claim")
	b.logs(101)
	b.looks(110)
	b.wants(b.Leaving(), "run "+runHere+" continues")

	must.Do(t, b.run.Finish("done"))
	last := b.looks(120)
	must.Hold(t, last == "run "+runHere+": done" && b.gone() == last, "says %q, and to who leaves %q", last, b.gone())
}

// While Proxmox does not answer, the heartbeat is unknown, and the run does not count as dead.
func TestWatchWhileProxmoxIsSilent(t *testing.T) {
	t.Parallel()
	b := watchBeside(t, &claim.State{Cluster: "c1", Run: runHere, Beat: 1})
	b.logs(0)
	b.looks(0)
	b.px.down = errors.New("no route to host")
	b.looks(60)
	b.wants(b.heartbeat(), "whether that run is still alive is unknown: ", "no route to host")
	b.px.down = nil
	b.looks(120)
	b.wants(b.heartbeat(), "holds the claim, heartbeat 1")
	b.looks(160)
	b.wants(b.heartbeat(), "stood still for 1m40s")
}

// TestWatchAfterSleep: while this machine sleeps its monotonic clock stands still. Then Proxmox is read at once, and the
// time without a look does not count as the silence of a run.
func TestWatchAfterSleep(t *testing.T) {
	t.Parallel()
	claim := &claim.State{Cluster: "c1", Run: "r2", Holder: claim.Holder{Host: "ci-7"}, Beat: 1}
	b := watchBeside(t, claim)
	sleep := func() {
		b.from = b.from.Add(8 * time.Hour)
		(*struct { // time.Time
			wall uint64
			ext  time.Duration
			loc  *time.Location
		})(unsafe.Pointer(&b.from)).ext -= 8 * time.Hour
	}
	claim.Since = b.from.Add(-10 * time.Minute)
	b.logs(-3600)
	b.looks(0)
	b.looks(1)
	claim.Run = "r3"
	sleep()
	b.looks(2)
	b.wants(strings.Join(b.text, "\n"), "held by run r3 ")
	sleep()
	b.looks(3)
	b.wants(b.Leaving(), "run r3 continues")
}
