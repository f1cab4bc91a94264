package simtest

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// longestRoll is the maximum duration of a roll of a lab's workers in lab time, under any
// fault.
const longestRoll = 30 * time.Minute

// trouble is a temporary fault of Proxmox.
type trouble struct {
	hosts  int
	lasts  time.Duration
	begins func(l *Lab) (ends func())
	// says are texts of which a failed roll has at least one in its error or its hints; none:
	// it must not fail.
	says []string
}

// breakProxies makes every host unreachable for the other hosts' APIs.
func breakProxies(f world.ProxyFailure) func(*Lab) func() {
	return func(l *Lab) func() {
		for _, host := range l.World.Hosts() {
			l.World.BreakProxy(host, f)
		}
		return func() { l.mendProxies() }
	}
}

func (l *Lab) mendProxies() {
	for _, host := range l.World.Hosts() {
		l.World.BreakProxy(host, world.ProxyFailure{})
	}
}

func holdLocks(l *Lab) func() {
	var releases []func()
	for _, n := range l.Nodes {
		if release, err := l.World.HoldLock(n.VMID); err == nil { // otherwise one of the VM's own tasks has it
			releases = append(releases, release)
		}
	}
	return func() {
		for _, release := range releases {
			release()
		}
	}
}

func disableToken(l *Lab) func() {
	id, secret, _ := strings.Cut(l.Token(), "=")
	l.World.AddToken(world.Token{ID: id, Secret: "another one", Privsep: true})
	return func() { l.World.AddToken(world.Token{ID: id, Secret: secret, Privsep: true}) }
}

func troubles() map[string]trouble {
	unreached := []string{"the node that was asked does not reach pve", "can't prove that we still hold the claim"}
	return map[string]trouble{
		"hosts do not reach each other": {2, time.Minute, breakProxies(world.ConnectionTimedOut), unreached},
		"answers of hosts are lost":     {2, time.Minute, breakProxies(world.AnswerTimedOut), unreached},
		"the token is disabled":         {1, time.Minute, disableToken, []string{"Proxmox does not accept the API token recast@pve!lab: check that it exists"}},
		"no quorum": {1, time.Minute, func(l *Lab) func() {
			l.World.SetQuorum(false)
			return func() { l.World.SetQuorum(true) }
		}, []string{"look at pvecm status on a Proxmox node"}},
		"the disks' storage is offline": {1, time.Minute, func(l *Lab) func() {
			l.World.SetStorageActive(sim.DiskStorage, "pve1", false)
			return func() { l.World.SetStorageActive(sim.DiskStorage, "pve1", true) }
		}, []string{"see what is wrong with that storage on its node"}},
		"locks are held for a while": {1, time.Minute, holdLocks, nil},
		"locks are held":             {1, 10 * time.Minute, holdLocks, []string{"Proxmox is at work on the same VM or storage: see its running tasks"}},
	}
}

// atChange calls f once, before Proxmox acts on the n-th change.
func (l *Lab) atChange(n int64, f func()) (came *atomic.Bool) {
	came = &atomic.Bool{}
	var changes atomic.Int64
	l.Recorder.Hooks(func(c record.Call) error {
		if c.Proto == "proxmox" && c.Mutation && changes.Add(1) == n {
			came.Store(true)
			f()
		}
		return nil
	}, nil)
	return came
}

// TestRollThroughTroubles: a temporary fault of Proxmox begins at one of the changes of a roll.
func TestRollThroughTroubles(t *testing.T) {
	for name, o := range troubles() {
		for s, points := range map[cluster.Strategy][]int64{cluster.Recreate: {7, 24, 41}, cluster.Reimage: {12, 29}} {
			for _, n := range points {
				begins := func(l *Lab) func() {
					came := l.atChange(n, func() { time.AfterFunc(o.lasts, o.begins(l)) })
					return func() {
						if !came.Load() {
							l.t.Fatalf("the roll makes fewer changes than %d", n)
						}
						time.Sleep(o.lasts)
					}
				}
				f := faultyRoll{hosts: o.hosts, strategy: s, begins: begins, says: o.says}
				t.Run(fmt.Sprintf("%s/%s/change %d", name, s, n), f.play)
			}
		}
	}
}

// faultyRoll is a roll of two workers during a fault of Proxmox.
type faultyRoll struct {
	hosts    int
	strategy cluster.Strategy // "": auto
	begins   func(l *Lab) (ends func())
	says     []string // see trouble
}

// play rolls into the fault: this roll, or the next one after the fault, ends in sync, and
// a failed one says what to do.
func (f faultyRoll) play(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 2, Hosts: f.hosts}, func(t *testing.T, lab *Lab) {
		if f.strategy != "" {
			lab.setRoll("strategy: " + string(f.strategy))
		}
		lab.Patch(sim.PatchedExtension)
		ends := f.begins(lab)
		err := lab.rollInTime(t, firstRun)
		lab.Recorder.Hooks(nil, nil)
		ends()
		if err != nil {
			requireSaid(t, err, f.says)
			if err := lab.rollInTime(t, secondRun); err != nil {
				t.Fatalf("the roll after it: %v", err)
			}
		}
		lab.requireRolled(t)
	})
}

// rollInTime fails the test if a roll exceeds longestRoll.
func (l *Lab) rollInTime(t *testing.T, run string) error {
	t.Helper()
	return inTime(t.Context(), t, l.as(run).roll(planning.Policy{}))
}

// inTime fails the test if do exceeds longestRoll.
func inTime(ctx context.Context, t *testing.T, do func(context.Context) error) error {
	t.Helper()
	start := time.Now()
	err := do(ctx)
	if took := time.Since(start); took > longestRoll {
		t.Errorf("it took %s: %v", took, err)
	}
	return err
}

// requireSaid fails unless the error or one of its hints contains one of these.
func requireSaid(t *testing.T, err error, says []string) {
	t.Helper()
	if err == nil {
		t.Fatalf("the roll did not fail; it was to say %q", says)
	}
	all := err.Error() + "\n" + strings.Join(fault.Hints(err), "\n")
	for _, text := range says {
		if strings.Contains(all, text) {
			return
		}
	}
	t.Errorf("the roll failed and says none of %q:\n%s", says, all)
}

// requireRolled requires that both workers are rolled.
func (l *Lab) requireRolled(t *testing.T) {
	t.Helper()
	requireDrift(t, l)
	l.requireKept(2)
	requireNoClaim(t, l)
	l.RequireIntact()
}

// TestRollWithSlowReads: one of two endpoints answers every k-th read with 595 after half
// a minute: the other one is used, and the roll continues.
func TestRollWithSlowReads(t *testing.T) {
	for _, k := range []int64{7, 20} {
		begins := func(l *Lab) func() {
			var reads atomic.Int64
			l.Recorder.Hooks(func(c record.Call) error {
				switch {
				case c.Proto != "proxmox" || c.Mutation:
				case reads.Add(1)%k == 0:
					breakProxies(world.ConnectionTimedOut)(l)
				default:
					l.mendProxies()
				}
				return nil
			}, nil)
			return l.mendProxies
		}
		says := append([]string{"the next run takes it over"}, troubles()["hosts do not reach each other"].says...)
		t.Run(fmt.Sprintf("every %d", k), faultyRoll{hosts: 2, begins: begins, says: says}.play)
	}
}

// The API of the first of two endpoints is down, from some change on. The other one is used.
func TestRollWithADeadEntryNode(t *testing.T) {
	long(t)
	for _, n := range []int64{0, 3, 12, 31} {
		t.Run(fmt.Sprintf("from change %d on", n), func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 1, Workers: 2, Hosts: 2}, func(t *testing.T, lab *Lab) {
				lab.Patch(sim.PatchedExtension)
				conf, err := lab.Client().Project()
				must(t, err)
				entry, err := url.Parse(conf.Config.Proxmox.Endpoints[0])
				must(t, err)
				var changes atomic.Int64
				var dead atomic.Bool
				dead.Store(n == 0)
				lab.Recorder.Hooks(func(c record.Call) error {
					if c.Proto == "proxmox" && c.Mutation && changes.Add(1) == n {
						dead.Store(true)
					}
					if c.Proto == "proxmox" && c.Target == "pve1" && dead.Load() {
						return errKilled // its connections break
					}
					return nil
				}, nil)
				for _, run := range []string{firstRun, secondRun} {
					c := lab.as(run)
					c.Reroute = func(addr string) string {
						if addr == entry.Host && dead.Load() {
							return "127.42.7.250:8006" // an unused address
						}
						return addr
					}
					err = inTime(t.Context(), t, c.roll(planning.Policy{}))
					if err == nil || n == 0 {
						break
					}
					requireSaid(t, err, []string{"no answer: it may or may not have happened"})
				}
				must(t, err)
				lab.Recorder.Hooks(nil, nil)
				lab.requireRolled(t)
			})
		})
	}
}

// taskTypes are the types of tasks in a roll by recreate.
func taskTypes() []string {
	return []string{"imgcopy", "qmcreate", "qmshutdown", "qmmove", "qmconfig", "qmdestroy", "qmstart"}
}

// TestRollWithKilledWorkers kills the worker of one task of each type, so that its
// progress is unknown.
func TestRollWithKilledWorkers(t *testing.T) {
	for _, kind := range taskTypes() {
		if kind == "qmcreate" {
			continue // leaves a lock behind
		}
		t.Run(kind, faultyRoll{
			begins: func(l *Lab) func() { return l.killWorker(kind, "") }, says: []string{"or its node went down: run the same command again"},
		}.play)
	}
}

// killWorker kills the first task of that type and, unless it is "", with that ID.
func (l *Lab) killWorker(kind, id string) (killed func()) {
	var once sync.Once
	upid := ""
	l.Recorder.Hooks(nil, func(record.Call) {
		for _, task := range l.World.Tasks() {
			if task.Running && task.Type == kind && (id == "" || task.ID == id) {
				once.Do(func() { upid = task.UPID; l.World.KillTask(upid) })
			}
		}
	})
	return func() {
		l.t.Helper()
		l.Recorder.Hooks(nil, nil)
		if task, _ := l.World.LookupTask(upid); task.ExitStatus != "unexpected status" {
			l.t.Fatalf("no %s %s was killed: %+v", kind, id, task)
		}
	}
}

// TestRollWithAKilledCreation: the leftover VM is locked, and only root can remove it.
func TestRollWithAKilledCreation(t *testing.T) {
	long(t)
	eachInLab(t, sim.Options{ControlPlanes: 1, Workers: 2}, map[string]int{"of the claim": claimVM, "of a node": worker1}, func(t *testing.T, lab *Lab, vmid int) {
		lab.Patch(sim.PatchedExtension)
		killed := lab.killWorker("qmcreate", fmt.Sprint(vmid))
		err := lab.rollInTime(t, firstRun)
		killed()
		if vmid != claimVM {
			requireSaid(t, err, []string{"or its node went down: run the same command again"})
			err = lab.rollInTime(t, secondRun)
		}
		requireSaid(t, err, []string{fmt.Sprintf("with qm unlock %d && qm destroy %[1]d, then run the same command again", vmid)})
		lab.World.SetLock(vmid, "")
		lab.done(lab.World.DestroyVM("", "pve1", world.DestroyRequest{ID: vmid}))
		if err := lab.rollInTime(t, thirdRun); err != nil {
			t.Fatalf("the roll after it: %v", err)
		}
		lab.requireRolled(t)
	})
}

// TestRollWithWarnings: one task of each type ends with a warning. Its work is done; only
// a VM's deletion must be without warnings.
func TestRollWithWarnings(t *testing.T) {
	for _, kind := range taskTypes() {
		const warning = "something is not quite right"
		f := faultyRoll{begins: func(l *Lab) func() { l.World.WarnNext(kind, warning); return func() {} }}
		if kind == "qmdestroy" {
			f.says = []string{warning}
		}
		t.Run(kind, f.play)
	}
}

// TestRollWithoutItsStorage: a storage that is unreachable when the plan is made, or right
// afterwards, is detected while the node still serves.
func TestRollWithoutItsStorage(t *testing.T) {
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		for before, says := range map[string]string{
			"the plan": "wk1: storage fast is not active on pve1: see pvesm status there",
			"the gate": "read storage fast, on which efidisk0 of VM 9031 is, before that is taken down: ",
		} {
			t.Run(fmt.Sprintf("%s/before %s", s, before), func(t *testing.T) {
				long(t)
				inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
					lab.setRoll("strategy: " + string(s))
					lab.Patch(sim.PatchedExtension)
					goes := func() { lab.World.SetStorageActive(sim.DiskStorage, "pve1", false) }
					first := lab.as(firstRun)
					if before == "the plan" {
						goes()
					} else {
						first.Emit = whenStarted("gate", goes)
					}
					_, err := first.Roll(t.Context(), planning.Policy{})
					requireSaid(t, err, []string{says})
					node, err := lab.Kube.Node(t.Context(), "wk1")
					if must(t, err); node.Spec.Unschedulable || !isReady(node) {
						t.Error("wk1 does not serve any more")
					}
					requireDrift(t, lab, "wk1")
					lab.World.SetStorageActive(sim.DiskStorage, "pve1", true)
					must(t, lab.rollInTime(t, secondRun))
					requireInSync(t, lab)
				})
			})
		}
	}
}
