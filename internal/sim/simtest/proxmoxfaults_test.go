package simtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// faultyRoll is a roll of two workers during a temporary fault of Proxmox.
type faultyRoll struct {
	hosts  int
	lasts  time.Duration // of one that begins at a change
	begins func(l *Lab) (ends func())
	// says are texts of which a failed roll has at least one in its error or its hints; none: it must not fail.
	says     []string
	strategy cluster.Strategy // "": auto
}

// breakProxies makes every host unreachable for the other hosts' APIs.
func breakProxies(f world.ProxyFailure) func(*Lab) func() {
	return func(l *Lab) func() {
		for _, host := range l.World.Hosts() {
			l.World.BreakProxy(host, f)
		}
		return l.mendProxies
	}
}

func (l *Lab) mendProxies() { breakProxies(world.ProxyFailure{})(l) }

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

// off is a trouble in which something is off.
func off(set func(l *Lab, on bool)) func(*Lab) func() {
	return func(l *Lab) func() {
		set(l, false)
		return func() { set(l, true) }
	}
}

func setToken(l *Lab, on bool) {
	id, secret, _ := strings.Cut(l.Token(), "=")
	if !on {
		secret = "another one"
	}
	l.World.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
}

func setStorage(l *Lab, on bool) { l.World.SetStorageActive(sim.DiskStorage, "pve1", on) }

// troubles begin at one of the changes of a roll.
func troubles() map[string]faultyRoll {
	unreached := []string{"the node that was asked does not reach pve", "can't prove that we still hold the claim"}
	setQuorum := func(l *Lab, on bool) { l.World.SetQuorum(on) }
	return map[string]faultyRoll{
		"hosts do not reach each other": {hosts: 2, lasts: time.Minute, begins: breakProxies(world.ConnectionTimedOut), says: unreached},
		"answers of hosts are lost":     {hosts: 2, lasts: time.Minute, begins: breakProxies(world.AnswerTimedOut), says: unreached},
		"the token is disabled":         {lasts: time.Minute, begins: off(setToken), says: []string{"Proxmox does not accept the API token recast@pve!lab: check that it exists"}},
		"no quorum":                     {lasts: time.Minute, begins: off(setQuorum), says: []string{"look at pvecm status on a Proxmox node"}},
		"the disks' storage is offline": {lasts: time.Minute, begins: off(setStorage), says: []string{"see what is wrong with that storage on its node"}},
		"locks are held for a while":    {lasts: time.Minute, begins: holdLocks},
		"locks are held":                {lasts: 10 * time.Minute, begins: holdLocks, says: []string{"Proxmox is at work on the same VM or storage: see its running tasks"}},
	}
}

// at is the same fault, from the n-th change of a roll on.
func (f faultyRoll) at(n int64, s cluster.Strategy) faultyRoll {
	strikes := f.begins
	f.strategy = s
	f.begins = func(l *Lab) func() {
		var changes atomic.Int64
		l.Recorder.Hooks(func(c record.Call) error {
			if c.Proto == "proxmox" && c.Mutation && changes.Add(1) == n {
				time.AfterFunc(f.lasts, strikes(l))
			}
			return nil
		}, nil)
		return func() {
			mustBe(l.t, changes.Load() >= n, "the roll makes fewer changes than %d", n)
			time.Sleep(f.lasts)
		}
	}
	return f
}

// slowReads: one of two endpoints answers every k-th read with 595 after half a minute: the other one is used.
func slowReads(k int64) func(*Lab) func() {
	return func(l *Lab) func() {
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
}

// TestRollThroughTroubles: a temporary fault of Proxmox, or of one of its tasks, does not stop a roll, or the next run
// continues. The work of a task that ends with a warning is done; only a VM's deletion must be without.
func TestRollThroughTroubles(t *testing.T) {
	rolls := map[string]faultyRoll{}
	for name, f := range troubles() {
		for s, points := range map[cluster.Strategy][]int64{cluster.Recreate: {7, 24, 41}, cluster.Reimage: {12, 29}} {
			for _, n := range points {
				rolls[fmt.Sprintf("%s/%s/change %d", name, s, n)] = f.at(n, s)
			}
		}
	}
	says := append([]string{"the next run takes it over"}, troubles()["hosts do not reach each other"].says...)
	for _, k := range []int64{7, 20} {
		rolls[fmt.Sprintf("every %d-th read is slow", k)] = faultyRoll{hosts: 2, begins: slowReads(k), says: says}
	}
	for _, kind := range []string{"imgcopy", "qmcreate", "qmshutdown", "qmmove", "qmconfig", "qmdestroy", "qmstart"} {
		const warning = "something is not quite right"
		warned := faultyRoll{begins: func(l *Lab) func() { l.World.WarnNext(kind, warning); return func() {} }}
		if kind == "qmdestroy" {
			warned.says = []string{warning}
		}
		rolls[kind+" warns"] = warned
		if kind != "qmcreate" { // which leaves a lock behind
			killed := func(l *Lab) func() { return l.killWorker(kind, "") }
			rolls[kind+" is killed"] = faultyRoll{begins: killed, says: []string{"or its node went down: run the same command again"}}
		}
	}
	for name, f := range rolls {
		t.Run(name, f.play)
	}
}

// play rolls into the fault: this roll, or the next one after the fault, ends in sync; a failed one says what to do.
func (f faultyRoll) play(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 2, Hosts: f.hosts}, func(t *testing.T, lab *Lab) {
		lab.patch(sim.PatchedExtension, "strategy: "+string(cmp.Or(f.strategy, cluster.Auto)))
		ends := f.begins(lab)
		err := lab.rollInTime(t, firstRun)
		lab.Recorder.Hooks(nil, nil)
		ends()
		if err != nil {
			requireSaid(t, err, f.says)
			must(t, lab.rollInTime(t, secondRun))
		}
		lab.requireRolled(t)
	})
}

func (l *Lab) rollInTime(t *testing.T, run string) error {
	return inTime(t.Context(), t, l.as(run).roll(planning.Policy{}))
}

func requireSaid(t *testing.T, err error, says []string) {
	mustBe(t, err != nil, "the roll did not fail; it was to say %q", says)
	all := err.Error() + "\n" + strings.Join(fault.Hints(err), "\n")
	require(t, slices.ContainsFunc(says, func(text string) bool { return strings.Contains(all, text) }),
		"the roll failed and says none of %q:\n%s", says, all)
}

func (l *Lab) requireRolled(t *testing.T) {
	requireDrift(t, l)
	l.requireKept(2)
	requireNoClaim(t, l)
}

// The API of the first of two endpoints is down, from a change with that number on. The other one is used.
func TestRollWithADeadEntryNode(t *testing.T) {
	o := sim.Options{ControlPlanes: 1, Workers: 2, Hosts: 2}
	eachLong(t, o, storiesOf[int64](0, 3, 12, 31), func(t *testing.T, lab *Lab, n int64) {
		lab.Patch(sim.PatchedExtension)
		var err error
		entry := valueOf(url.Parse(valueOf(lab.Client().Project())(t).Config.Proxmox.Endpoints[0]))(t)
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
		l.Recorder.Hooks(nil, nil)
		task, _ := l.World.LookupTask(upid)
		mustBe(l.t, task.ExitStatus == "unexpected status", "no %s %s was killed: %+v", kind, id, task)
	}
}

// TestRollWithAKilledCreation: the leftover VM is locked, and only root can remove it.
func TestRollWithAKilledCreation(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 2}, map[string]int{"of the claim": claimVM, "of a node": worker1}, func(t *testing.T, lab *Lab, vmid int) {
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
		must(t, lab.rollInTime(t, thirdRun))
		lab.requireRolled(t)
	})
}

// TestRollWithoutItsStorage: an unreachable storage is detected while the node still serves.
func TestRollWithoutItsStorage(t *testing.T) {
	type story struct {
		strategy cluster.Strategy
		before   string
	}
	says := map[string]string{
		"the plan": "wk1: storage fast is not active on pve1: see pvesm status there",
		"the gate": "read storage fast, on which efidisk0 of VM 9031 is, before that is taken down: ",
	}
	stories := map[string]story{}
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		for before := range says {
			stories[fmt.Sprintf("%s/before %s", s, before)] = story{s, before}
		}
	}
	eachLong(t, oneWorker(), stories, func(t *testing.T, lab *Lab, s story) {
		lab.patch(sim.PatchedExtension, "strategy: "+string(s.strategy))
		first := lab.as(firstRun)
		if s.before == "the plan" {
			setStorage(lab, false)
		} else {
			first.Emit = whenStarted("gate", func() { setStorage(lab, false) })
		}
		requireSaid(t, first.roll(planning.Policy{})(t.Context()), []string{says[s.before]})
		lab.requireServing("wk1")
		requireDrift(t, lab, "wk1")
		setStorage(lab, true)
		must(t, lab.rollInTime(t, secondRun))
		requireInSync(t, lab)
	})
}

type late struct {
	lab     *Lab
	deliver func()
	said    string // answer of the late call
}

// rollKilledBy kills a roll with its first matching request, which Proxmox does not process before deliver.
func (l *Lab) rollKilledBy(is func(record.Call) bool, p planning.Policy) *late {
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	c := l.Client()
	held, killed := record.Hold(record.NoAnswer), false
	l.Recorder.Hooks(func(call record.Call) error {
		if killed || !call.Mutation || !is(call) {
			return nil
		}
		killed = true
		c.Kill()
		cancel()
		return held
	}, nil)
	err := c.roll(p)(ctx)
	mustBe(l.t, err != nil && killed, "the run was to be killed (%t): %v", killed, err)
	l.Recorder.Hooks(nil, nil)
	return &late{lab: l, deliver: sync.OnceFunc(func() { deliver(l.World, held) })}
}

func deliver(w *world.World, held *record.Held) {
	held.Deliver()
	for _, task := range w.Tasks() {
		w.WaitTask(task.UPID)
	}
}

// deliverBefore delivers it right before the first matching call, or when the time limit of Proxmox has passed.
func (x *late) deliverBefore(is func(record.Call) bool, within time.Duration) {
	x.lab.Recorder.Hooks(func(call record.Call) error {
		if !call.Late && call.Mutation && is(call) {
			x.deliver()
		}
		return nil
	}, func(call record.Call) {
		if call.Late {
			x.said = fmt.Sprintf("%s %s: %d", call.Method, call.Path, call.Status)
		}
	})
	if within > 0 {
		time.AfterFunc(within-time.Second, x.deliver)
	}
}

// TestLateDelete: the delete of the old VM is processed when the new VM with its number has every disk and is stopped.
func TestLateDelete(t *testing.T) {
	eachLong(t, oneWorker(), map[string]deed{
		"roll":    rolls(planning.Policy{}),
		"recover": func(ctx context.Context, c *Client) error { return c.giveUp("wk1")(ctx) },
	}, func(t *testing.T, lab *Lab, end deed) {
		lab.Patch(sim.PatchedExtension)
		before := lab.Disks()
		x := lab.rollKilledBy(toVM("DELETE", "/qemu/9031"), planning.Policy{})
		x.deliverBefore(toVM("POST", "/qemu/9031/status/start"), 0)
		must(t, end(t.Context(), lab.Client()))
		require(t, strings.HasSuffix(x.said, ": 500"), "the late delete was not refused: %q", x.said)
		for serial, sum := range before {
			require(t, lab.Disks()[serial] == sum || strings.HasPrefix(serial, "recast-") || strings.Contains(serial, "sys"),
				"disk %s: %s before, %q after", serial, sum, lab.Disks()[serial])
		}
		requireSame(t, "", lab.vm(wk1).Config["protection"], "VM 9031 had no protection")
	})
}

// stopTimeout is that of the lab's recast.yaml.
const stopTimeout = time.Minute

// TestLateShutdown: that of a control plane comes when another one is down, unless Proxmox's time limit is over.
func TestLateShutdown(t *testing.T) {
	type story struct {
		first  string // recast's next action on cp1 after its sender's death
		policy planning.Policy
	}
	eachLong(t, threePlanes, map[string]story{
		"finished": {"", policyFor("cp1", "cp2")},
		"put back": {"cp1", policyFor("cp2")},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		x := lab.rollKilledBy(toVM("POST", "/qemu/9001/status/shutdown"), policyFor("cp1"))
		x.deliverBefore(func(call record.Call) bool {
			return toVM("POST", "/qemu/9002/status/start")(call) || toVM("DELETE", "/qemu/9002")(call)
		}, stopTimeout+exchange.LateQueue)
		if c.first != "" {
			must(t, errOf(lab.Client().Recover(t.Context(), c.first)))
		}
		err := lab.as(secondRun).roll(c.policy)(t.Context())
		x.deliver()
		lab.requireEtcd()
		require(t, err == nil || fault.KindOf(err) == fault.Refused, "err = %v", err)
	})
}

// TestLateRequestIsTold: status shows a request without an answer, until its time limit has passed.
func TestLateRequestIsTold(t *testing.T) {
	inLongLab(t, threePlanes, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		x := lab.rollKilledBy(toVM("POST", "/qemu/9001/status/shutdown"), policyFor("cp1"))
		told := func() []string { return lab.status().Unanswered }
		const want = "waits up to 6m0s before it takes another control plane out"
		requireSame(t, 1, len(told()), "what status tells of")
		requireSays(t, told()[0], "shutdown of VM 9001", want)
		checks := diagnosis(t, lab.Client()).Checks
		require(t, slices.ContainsFunc(checks, func(c checkup.Check) bool { return strings.Contains(c.Seen, want) }),
			"doctor: %+v", checks)
		must(t, errOf(lab.Client().Recover(t.Context(), "cp1")))
		requireSame(t, 1, len(told()), "what status tells of once its record is closed")
		must(t, lab.as(secondRun).roll(policyFor("cp2"))(t.Context()))
		requireSame(t, 0, len(told()), "what status tells of when its time is over")
		x.deliver() // a server must not keep it
	})
}

// TestLateStart: that of a VM comes when it gets its old disks back, unless Proxmox's time limit is over.
func TestLateStart(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		before := lab.machinesDump()
		x := lab.rollKilledBy(toVM("POST", "/qemu/9031/status/start"), planning.Policy{})
		x.deliverBefore(toVM("POST", "/move_disk"), exchange.LateQueue)
		requireSame(t, "done", valueOf(lab.Client().Recover(t.Context(), "wk1"))(t).Outcome, "outcome (-want +got)")
		lab.requireRecovered(before)
	})
}

// loseEvery breaks the connection in place of every k-th answer of Proxmox, and returns how many were lost.
func (l *Lab) loseEvery(k int64) *atomic.Int64 {
	var changes, lost atomic.Int64
	l.Recorder.Hooks(nil, func(c record.Call) {
		if c.Proto == "proxmox" && c.Mutation && changes.Add(1)%k == 0 {
			lost.Add(1)
			panic(http.ErrAbortHandler)
		}
	})
	return &lost
}

// rollUnanswered is a roll that is done at once although every k-th answer of Proxmox is lost, and at least so many.
func (l *Lab) rollUnanswered(k, least int64) {
	lost := l.loseEvery(k)
	rep, err := l.Client().Roll(l.t.Context(), planning.Policy{})
	l.Recorder.Hooks(nil, nil)
	mustBe(l.t, err == nil && rep.Outcome == "done" && lost.Load() >= least, "%+v, %d lost, %v", rep, lost.Load(), err)
}

// TestRollWithLostAnswers: a roll without every k-th answer, that to the import of a disk too, ends in sync at once.
func TestRollWithLostAnswers(t *testing.T) {
	type story struct {
		k    int64
		boot string
	}
	const iso, disk = cluster.BootFromISO, cluster.BootFromDisk
	stories := storiesOf(
		story{1, iso}, story{2, iso}, story{3, iso}, story{7, iso}, story{1, disk}, story{2, disk}, story{3, disk})
	eachLong(t, twoWorkers, stories, func(t *testing.T, lab *Lab, s story) {
		before := lab.Disks()
		lab.BootsDisks(s.boot)
		lab.Patch(sim.PatchedExtension)
		lab.rollUnanswered(s.k, 3)
		lab.requireRolled(t)
		requireSame(t, before, lab.Disks(), "disks (-before +after)")
	})
}

// TestRollWithLostChanges rolls a worker while every k-th change does not reach Proxmox:
// idempotent ones are retried, any other ends the run, and the next one continues. In each run one change more lies
// between two that are lost, or the same change of each run would be.
func TestRollWithLostChanges(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf[int64](3, 5, 7), func(t *testing.T, lab *Lab, k int64) {
		lab.Patch(sim.PatchedExtension)
		var changes, lost, every atomic.Int64
		lab.Recorder.Hooks(func(c record.Call) error {
			if c.Proto == "proxmox" && c.Mutation && changes.Add(1)%every.Load() == 0 {
				lost.Add(1)
				return errKilled
			}
			return nil
		}, nil)
		var err error
		for run := range int64(20) {
			every.Store(k + run)
			changes.Store(0)
			_, err = lab.as(fmt.Sprintf("20000101-0000-%04d", run)).Roll(t.Context(), planning.Policy{})
			if !errors.Is(err, cluster.ErrLostAnswer) {
				break
			}
		}
		mustBe(t, err == nil && lost.Load() != 0, "%d changes lost: %v", lost.Load(), err)
		lab.Recorder.Hooks(nil, nil)
		requireInSync(t, lab)
	})
}

func (l *Lab) brokenImage(node, image string, d talosapi.Defect) {
	must(l.t, l.Trouble(node, talosapi.Trouble{Images: map[string]talosapi.Defect{image: d}}))
}

// TestUpgradeKubernetesFetchesFirst: if an image can't be pulled nothing is restarted.
func TestUpgradeKubernetesFetchesFirst(t *testing.T) {
	type story struct{ node, image string }
	eachLong(t, oneWorker(), map[string]story{
		"a kubelet of a worker": {"wk1", "ghcr.io/siderolabs/kubelet:v1.36.1"},
		"kube-proxy":            {"wk1", "registry.k8s.io/kube-proxy:v1.36.1"},
		"a scheduler":           {"cp1", "registry.k8s.io/kube-scheduler:v1.36.1"},
	}, func(t *testing.T, lab *Lab, c story) {
		before := lab.versions()
		lab.brokenImage(c.node, c.image, talosapi.Unpullable)
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), c.node+" can't fetch "+c.image)
		requireSame(t, before, lab.versions(), "versions (-before +after)")
		lab.brokenImage(c.node, c.image, talosapi.Sound)
		lab.mustUpgradeKubernetes()
	})
}

// TestUpgradeKubernetesStops: a component does not start: no other node is touched, and the same command continues.
func TestUpgradeKubernetesStops(t *testing.T) {
	type story struct {
		image, step string
		defect      talosapi.Defect
		seen        string
	}
	eachLong(t, sim.Options{ControlPlanes: 3}, map[string]story{
		"an API server that never answers": {"registry.k8s.io/kube-apiserver:v1.36.1", "upgrade-k8s/kube-apiserver/cp2", talosapi.Unready, "its API server: "},
		"an API server that never serves":  {"registry.k8s.io/kube-apiserver:v1.36.1", "upgrade-k8s/kube-apiserver/cp2", talosapi.Unserving, "its API server: 127.42.7.12:6443 is not ready: poststarthook/rbac/bootstrap-roles"},
		"an API server that ends at once":  {"registry.k8s.io/kube-apiserver:v1.36.1", "upgrade-k8s/kube-apiserver/cp2", talosapi.Loops, "CrashLoopBackOff"},
		"a kubelet that never starts":      {"ghcr.io/siderolabs/kubelet:v1.36.1", "upgrade-k8s/kubelet/cp2", talosapi.Unready, ""},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.brokenImage("cp2", c.image, c.defect)
		err := lab.Client().upgradeKubernetes(t.Context())
		requireFault(t, err, fault.Failed, c.step+": ", c.seen, "edit machineconfig", "run the same command again to continue")
		cp3, component := lab.versions()["cp3"], strings.TrimPrefix(strings.Split(c.step, "/")[1], "kube-")
		require(t, !strings.Contains(cp3, component+"=v1.36.1"), "cp3 was touched: %s", cp3)
		lab.brokenImage("cp2", c.image, talosapi.Sound)
		lab.editConfig("cp2", c.image, strings.Replace(c.image, "v1.36.1", "v1.35.4", 1)) // as the hint says
		time.Sleep(2 * time.Minute)
		lab.mustUpgradeKubernetes()
	})
}

// TestUpgradeKubernetesRefuses impossible upgrades before anything is changed.
func TestUpgradeKubernetesRefuses(t *testing.T) {
	inLongLab(t, threePlanes, func(t *testing.T, lab *Lab) {
		before := lab.versions()
		refuse := func(to, text string) {
			from := len(lab.Recorder.Calls())
			requireRefused(t, errOf(lab.Client().UpgradeKubernetes(t.Context(), to, false)), text)
			requireNone(t, lab.sent(from, func(c record.Call) bool { return c.Mutation }), "something was changed")
		}
		refuse("v1.37.0", "v1.35.4 → v1.37.0 skips v1.36")
		refuse("v1.37.0", "Talos v1.13.9 supports Kubernetes 1.31 to 1.36, not v1.37.0: roll to Talos v1.14 first")
		refuse("v1.35.3", "it is v1.35.4 already, and Kubernetes can't be downgraded")
		refuse("v1.34.6", "it is v1.35.4 already")
		lab.editConfig("cp2", "    apiServer:\n", "    apiServer:\n        extraArgs:\n            feature-gates: HonorPVReclaimPolicy=true\n")
		refuse("v1.36.1", "cp2: kube-apiserver is given the feature gate HonorPVReclaimPolicy, which Kubernetes v1.36.1 no longer has")
		lab.editConfig("wk1", "    kubelet:\n", "    kubelet:\n        extraArgs:\n            feature-gates: CSIMigrationPortworx=false,Other=true\n")
		refuse("v1.36.1", "wk1: kubelet is given the feature gate CSIMigrationPortworx, which Kubernetes v1.36.1 no longer has")
		requireSame(t, before, lab.versions(), "versions (-before +after)")
		lab.editConfig("cp2", "HonorPVReclaimPolicy", "Other")
		lab.editConfig("wk1", "CSIMigrationPortworx=false,", "")
		lab.breakEtcd(talosapi.EtcdFault{NoSpace: true}, "cp3")
		time.Sleep(2 * time.Minute) // until wk1's kubelet is back
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), "upgrade-k8s/check: etcd is not healthy")
	})
}

// TestARollKeepsKubernetes: a node is recreated with the Kubernetes that it ran, even if the user's file names another.
func TestARollKeepsKubernetes(t *testing.T) {
	eachLong(t, threePlanes, map[string]string{"an older file": "v1.35.4", "a newer file": "v1.37.0"}, func(t *testing.T, lab *Lab, fresh string) {
		files := lab.keptConfigs()
		must(t, lab.Client().upgradeKubernetes(t.Context()))
		lab.Patch(sim.PatchedExtension)
		for node, config := range files {
			files[node] = cluster.Secret(strings.ReplaceAll(string(config), "v1.35.4", fresh))
		}
		files.user(lab, "20000101-0002-feed").mustRoll(planning.Policy{})
		lab.requireKubernetes(nextKubernetes)
		requireInSync(t, lab)
	})
}

// TestRollAfterAnInterruptedUpgrade: a roll keeps every node's Kubernetes, and then the upgrade continues.
func TestRollAfterAnInterruptedUpgrade(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := lab.keptConfigs()
		begun := lab.Client()
		begun.killedAt(t, before("upgrade-k8s/kube-scheduler/cp1"), begun.upgradeKubernetes)
		half := lab.versions()
		mustBe(t, strings.Contains(half["cp1"], "v1.35.4") && strings.Contains(half["cp1"], "v1.36.1"),
			"not in between: %v", half)
		lab.Patch(sim.PatchedExtension)
		files.user(lab, "20000101-0001-feed").mustRoll(policyFor("wk1"))
		requireSame(t, half["wk1"], lab.versions()["wk1"], "versions of wk1 (-before +after)")
		lab.mustUpgradeKubernetes()
	})
}

// TestUpgradeKubernetesLooksAgain: changes during the confirmation are not overwritten.
func TestUpgradeKubernetesLooksAgain(t *testing.T) {
	type story struct {
		meanwhile func(l *Lab)
		want      string // "": it continues
	}
	eachLong(t, oneWorker(), map[string]story{
		"nothing happens": {func(*Lab) { time.Sleep(time.Hour) }, ""},
		"some of it gets done": {func(l *Lab) {
			l.editConfig("cp1", "kube-scheduler:v1.35.4", "kube-scheduler:v1.36.1")
			time.Sleep(2 * time.Minute)
		}, ""},
		"someone goes elsewhere": {func(l *Lab) {
			l.editConfig("cp1", "kube-scheduler:v1.35.4", "kube-scheduler:v1.35.5")
			time.Sleep(2 * time.Minute)
		}, "kube-scheduler of cp1 is to run registry.k8s.io/kube-scheduler:v1.35.5"},
	}, func(t *testing.T, lab *Lab, c story) {
		user := lab.Client()
		user.Upgrades = func(kubeupgrade.Plan) (bool, error) { c.meanwhile(lab); return true, nil }
		err := user.upgradeKubernetes(t.Context())
		if c.want == "" {
			must(t, err)
			lab.requireKubernetes(nextKubernetes)
		} else {
			requireRefused(t, err, "the cluster is no longer as the plan says: "+c.want)
		}
	})
}

// editConfig replaces a part of a machine's configuration, without a reboot.
func (l *Lab) editConfig(node, old, fresh string) {
	config := string(l.configOf(node))
	text := strings.Replace(config, old, fresh, 1)
	mustBe(l.t, text != config, "%s has no %q in its configuration", node, old)
	s, n := l.session(), l.node(node)
	defer s.end()
	must(l.t, s.machines.Talos.ReplaceConfig(l.t.Context(), n.Addr, n.UUID, cluster.Secret(text)))
}

// TestUpgradeKubernetesIsKilled at every point, and run again with its journal or without: the result is the same.
func TestUpgradeKubernetesIsKilled(t *testing.T) {
	long(t)
	for where, elsewhere := range map[string]bool{"here": false, "elsewhere": true} {
		t.Run(where, killGrid[changed]{
			begin: func(t *testing.T) changed {
				lab := New(t, oneWorker())
				return changed{lab, fmt.Sprint(lab.boots())}
			},
			do: upgradesKubernetes, journal: true,
			choose: func(t *testing.T, points []point) []point {
				var config, pull int
				for _, p := range points {
					config += strings.Count(p.name, "ApplyConfiguration")
					pull += strings.Count(p.name, "Pull")
				}
				require(t, config == 6 && pull >= 7, "%d configurations and %d pulls among %q", config, pull, points)
				return chosenKills(t, points, 1, func(p point) bool { return p.at%5 == 2 && elsewhere == (p.at%2 == 0) })
			},
			then: func(ctx context.Context, c *Client) error {
				if c.Run = "20000101-0001-feed"; elsewhere {
					c.Elsewhere = true
					c.lab.loseJournal()
				}
				rep, err := c.UpgradeKubernetes(ctx, nextKubernetes, false)
				require(c.lab.t, rep.Outcome == "done" || rep.Outcome == "nothing to do", "%+v", rep)
				return err
			},
			end: func(t *testing.T, lab changed) string {
				lab.requireKubernetes(nextKubernetes)
				requireSame(t, lab.before, fmt.Sprint(lab.boots()), "boots (-before +after)")
				lab.RequireIntact()
				return ""
			},
		}.killEverywhere)
	}
}

func upgradesKubernetes(ctx context.Context, c *Client) error { return c.upgradeKubernetes(ctx) }

// TestUpgradeKubernetesLeavesStagedConfigurations: what is staged, or on trial, does not come with a component's image.
func TestUpgradeKubernetesLeavesStagedConfigurations(t *testing.T) {
	type story struct {
		mode machineapi.ApplyConfigurationRequest_Mode
		over func(l *Lab)
	}
	eachLong(t, oneWorker(), map[string]story{
		"staged": {machineapi.ApplyConfigurationRequest_STAGED, func(l *Lab) {
			l.talosctl("wk1", func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
			time.Sleep(2 * time.Minute)
		}},
		"tried": {machineapi.ApplyConfigurationRequest_TRY, func(*Lab) { time.Sleep(2 * time.Minute) }},
	}, func(t *testing.T, lab *Lab, c story) {
		config := lab.configOf("wk1")
		edited := bytes.Replace(config, []byte("certSANs: []"), []byte("certSANs: [192.0.2.1]"), 1)
		mustBe(t, !bytes.Equal(edited, config), "nothing is changed")
		lab.talosctl("wk1", func(ctx context.Context, cl *client.Client) error {
			// A machine that has just booted shows no stored configuration, so no trial either.
			_, err := cl.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
			if err == nil {
				_, err = cl.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: edited, Mode: c.mode})
			}
			return err
		})
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), "wk1: it has a staged or a tried configuration")
		c.over(lab)
		lab.mustUpgradeKubernetes()
	})
}

// TestUpgradeKubernetesWaitsForWhatIsDown: even if every image is as wanted, a component has to run.
func TestUpgradeKubernetesWaitsForWhatIsDown(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const image, plain, verbose = "registry.k8s.io/kube-scheduler:v1.35.4", "    scheduler:\n", "    scheduler:\n        extraArgs:\n            v: \"3\"\n"
		lab.brokenImage("cp1", image, talosapi.Loops)
		lab.editConfig("cp1", plain, verbose) // it restarts
		time.Sleep(time.Minute)
		rep, err := lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, true)
		mustBe(t, err == nil && len(rep.Plan.Nodes[0].Lacks) == 1 &&
			strings.HasPrefix(rep.Plan.Nodes[0].Lacks[0], "kube-scheduler: its pod is not Ready"), "%+v, %v", rep.Plan, err)
		requireError(t, errOf(lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, false)), "upgrade-k8s/check: ",
			"CrashLoopBackOff")
		lab.brokenImage("cp1", image, talosapi.Sound)
		lab.editConfig("cp1", verbose, plain)
		time.Sleep(2 * time.Minute)
		rep, err = lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, false)
		require(t, err == nil && rep.Outcome == "nothing to do", "%+v, %v", rep, err)
	})
}

// TestUpgradeKubernetesNeedsEveryControlPlane: a member of etcd without a Node object is not skipped.
func TestUpgradeKubernetesNeedsEveryControlPlane(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3}, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", fmt.Sprintf("  - {name: cp3, schematic: %s, vmid: %d}\n", lab.node("cp3").Schematic, lab.node("cp3").VMID), "")
		without(store.Nodes(), "", "cp3")(lab)
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), "etcd member cp3: its machine is not a control plane that Kubernetes shows")
	})
}
