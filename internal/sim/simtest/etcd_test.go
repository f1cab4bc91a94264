package simtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/role"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

func (l *Lab) breakEtcd(f talosapi.EtcdFault, names ...string) {
	l.t.Helper()
	for _, name := range names {
		require(l.t, l.BreakEtcd(name, f) == nil, "%s has no etcd to break", name) // not fatal: hooks of a roll call this
	}
}

func (l *Lab) talosctl(name string, call func(context.Context, *client.Client) error) {
	l.t.Helper()
	must(l.t, l.Talosctl(l.t.Context(), name, call))
}

func (l *Lab) leaveAndReboot(name string, between func()) {
	l.t.Helper()
	l.talosctl(name, func(ctx context.Context, c *client.Client) error {
		return c.EtcdLeaveCluster(ctx, &machineapi.EtcdLeaveClusterRequest{})
	})
	between()
	l.talosctl(name, func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
	time.Sleep(2 * time.Minute)
}

// touched are the changes of a node's VM, machine or Node since a call, without image pulls: they come before its turn.
func (l *Lab) touched(from int, name string) []string {
	n := l.node(name)
	calls := l.sent(from, func(c record.Call) bool {
		of := strings.Contains(c.Path, fmt.Sprintf("/qemu/%d/", n.VMID)) || c.Proto == "talos" && c.Target == n.Addr.String() ||
			c.Proto == "kubernetes" && c.Target == name
		return c.Mutation && of && c.Method != "/machine.ImageService/Pull"
	})
	return cluster.Each(calls, func(c record.Call) string { return c.Method + " " + c.Path })
}

func (l *Lab) requireLeftAlone(from int, name string) {
	l.t.Helper()
	requireNone(l.t, l.touched(from, name), name+" was touched")
	require(l.t, l.runs(l.node(name)), "%s is off", name)
	if k, err := l.Kube.Node(l.t.Context(), name); err == nil && k.Spec.Unschedulable {
		l.t.Errorf("%s is cordoned", name)
	}
}

// What the members say reaches the gate. TestUnhealthyEtcd and the rows of cluster/rolling have each judgement.
func TestGateOfEtcd(t *testing.T) {
	type story struct {
		spoil  func(l *Lab)
		policy planning.Policy
		text   []string // in the error; none: the roll works
	}
	broken := func(f talosapi.EtcdFault, names ...string) func(*Lab) {
		return func(l *Lab) { l.breakEtcd(f, names...) }
	}
	eachLong(t, threePlanes, map[string]story{
		"another member is out of space": {broken(talosapi.EtcdFault{NoSpace: true}, "cp3"), policyFor("cp1"), []string{"alarm NOSPACE on member cp3"}},
		"another member is hung":         {broken(talosapi.EtcdFault{Hung: true}, "cp3"), policyFor("cp1"), []string{"cp3 does not answer: 127.42.7.13: gave up after 15s: read etcd's status"}},
		"another member is of another age": {
			broken(talosapi.EtcdFault{Version: "3.4.27"}, "cp3"), policyFor("cp1"),
			[]string{"its members are more than one minor version apart: cp3 runs 3.4.27, cp2 runs 3."},
		},
		"another member is a learner": {
			func(l *Lab) {
				l.leaveAndReboot("cp2", func() { l.breakEtcd(talosapi.EtcdFault{Learner: true}, "cp2") })
			},
			policyFor("cp1"),
			[]string{"cp2 is a learner: it does not vote yet"},
		},
		"nobody leads": {broken(talosapi.EtcdFault{Down: true}, "cp2", "cp3"), policyFor("cp1"), []string{"request timed out", "no control plane says who the members of etcd are"}},
		"a member that the others do not know": {
			splitBrain, planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}, []string{"the cluster has 3 control planes, but etcd without cp1 only these members: cp2"},
		},
		"only its own member is down": {broken(talosapi.EtcdFault{Down: true}, "cp1"), policyFor("cp1"), nil},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		user := lab.Client()
		from := 0
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if toVM(http.MethodDelete, "/qemu/9001")(call) {
				lab.breakEtcd(talosapi.EtcdFault{}, "cp1") // the faulty member ends with the machine
			}
		})
		user.confirms(func(planning.Plan) {
			c.spoil(lab)
			time.Sleep(time.Minute)
			from = len(lab.Recorder.Calls())
		})
		_, err := user.Roll(t.Context(), c.policy)
		if c.text == nil {
			must(t, err)
			return
		}
		requireFault(t, err, fault.Refused, c.text...)
		require(t, len(fault.Hints(err)) != 0, "no hint: %v", err)
		lab.requireLeftAlone(from, "cp1")
	})
}

// TestWorkersDoNotWaitForEtcd: an unhealthy member stops the roll of control planes, but not of workers before them.
func TestWorkersDoNotWaitForEtcd(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.setRoll("order: workers-first")
		lab.Patch(everywhere)
		lab.breakEtcd(talosapi.EtcdFault{Down: true}, "cp2")
		const says = "roll/control-planes/cp1/gate: etcd would not survive losing cp1: cp2 does not answer"
		lab.refuses(lab.Client().roll(planning.Policy{}), says, controlPlanes...)
		requireDrift(t, lab, controlPlanes...)
	})
}

// splitBrain makes cp3 forget etcd and form a new one. The lab's cp2 is down meanwhile, so that nobody lets it join.
func splitBrain(l *Lab) {
	l.leaveAndReboot("cp3", func() { l.breakEtcd(talosapi.EtcdFault{Down: true}, "cp2") })
	l.talosctl("cp3", bootstrap)
	time.Sleep(time.Minute)
	l.breakEtcd(talosapi.EtcdFault{}, "cp2")
}

// A roll waits for a fault of etcd that passes, names one that does not, and the next run goes on once it is repaired.
func TestEtcdTroubleAfterwards(t *testing.T) {
	long(t)
	passes := func(f talosapi.EtcdFault, node string) *talosFault {
		return &talosFault{begins: inTurn(breakEtcd(f, node), meanwhile(2*time.Minute, breakEtcd(talosapi.EtcdFault{}, node))), stands: untouched}
	}
	stays := func(f talosapi.EtcdFault, node, says string) *talosFault {
		mends := inTurn(breakEtcd(talosapi.EtcdFault{}, node), later)
		return &talosFault{begins: breakEtcd(f, node), mends: mends, says: []string{says}, stands: isOut}
	}
	faults := map[string]*talosFault{
		"the others lose their leader for a while": passes(talosapi.EtcdFault{Down: true}, "cp2"),
		"another member hangs for a while":         passes(talosapi.EtcdFault{Hung: true}, "cp2"),
		"its own member is a learner for a while":  passes(talosapi.EtcdFault{Learner: true}, "cp1"),
		"another member hangs":                     stays(talosapi.EtcdFault{Hung: true}, "cp2", "etcd: cp2 does not answer: 127.42.7.12: gave up after 15s"),
		"a member runs out of space":               stays(talosapi.EtcdFault{NoSpace: true}, "cp3", "alarm NOSPACE on member cp3"),
		"the data is not the same":                 stays(talosapi.EtcdFault{Corrupt: true}, "cp3", "alarm CORRUPT on member cp3"),
	}
	for _, f := range faults {
		f.o, f.rolls, f.at = threePlanes, "cp1", "bring-up/start"
	}
	eachFault(t, faults)
}

// resetAfterLeaving is a control plane, cp1, that is reset when it has left etcd, and joins it again.
type resetAfterLeaving struct {
	planes      int
	slow        time.Duration // how long Proxmox takes to shut it down
	cancelled   bool          // its replacement was begun, and is cancelled
	killed, off bool          // the run dies then; the machine goes down after it has joined again
	refused     string        // refusal of the next run
}

func (c resetAfterLeaving) options() sim.Options {
	return sim.Options{ControlPlanes: c.planes, Workers: 1}
}

// play runs the command that makes cp1 leave, and again if it is killed before the step at or refused.
func (c resetAfterLeaving) play(t *testing.T, lab *Lab, at string, command func(*Client) func(context.Context) error) {
	left := lab.memberIDs()["cp1"]
	reset := sync.OnceFunc(func() {
		time.AfterFunc(100*time.Millisecond, func() {
			must(t, lab.World.PowerOff(9001))
			must(t, lab.World.PowerOn(9001))
		})
	})
	lab.Recorder.Hooks(func(call record.Call) error {
		if toVM("POST", "/qemu/9001/status/shutdown")(call) {
			time.Sleep(c.slow)
		}
		return nil
	}, func(call record.Call) {
		if strings.HasSuffix(call.Method, "EtcdLeaveCluster") {
			reset()
		}
	})
	user := lab.second()
	if c.killed {
		user.killedAt(t, before(at), command(user))
		time.Sleep(3 * time.Minute)
		is := lab.memberIDs()["cp1"]
		mustBe(t, is != "" && is != left, "cp1 is member %q, it was %q", is, left)
		user = lab.as(thirdRun)
	}
	if c.off {
		must(t, lab.World.PowerOff(9001))
	}
	err := command(user)(t.Context())
	if c.refused != "" {
		requireError(t, err, c.refused, `start VM 9001 "cp1" on pve1 in Proxmox`)
		if c.off {
			must(t, lab.World.PowerOn(9001))
		}
		time.Sleep(2 * time.Minute)
		err = command(lab.Client())(t.Context())
	}
	must(t, err)
	require(t, len(lab.memberIDs()) == c.planes && lab.memberIDs()["cp1"] != "", "members of etcd: %v", lab.memberIDs())
}

// A reset makes a control plane that has left etcd, for a replacement or its cancelling, join again. Its vote must not
// be lost with its disk: it leaves once more, here and in the run after a kill.
func TestResetAfterItLeft(t *testing.T) {
	const unsaid = "no control plane says who the members of etcd are"
	eachLongIn(t, resetAfterLeaving.options, map[string]resetAfterLeaving{
		"of two":                   {planes: 2},
		"of three":                 {planes: 3},
		"killed":                   {planes: 2, killed: true},
		"killed and off":           {planes: 2, killed: true, off: true, refused: "whether cp1 has joined etcd again since it left can't be determined: " + unsaid},
		"killed and off, of three": {planes: 3, killed: true, off: true},

		"cancelled, of two":              {cancelled: true, planes: 2},
		"cancelled, of three":            {cancelled: true, planes: 3},
		"cancelled, of two, shut down":   {cancelled: true, planes: 2, slow: 30 * time.Second, refused: "put-back/stop: ask cp2 for the members of etcd"}, // and is started again
		"cancelled, of three, shut down": {cancelled: true, planes: 3, slow: 30 * time.Second},
		"cancelled, killed":              {cancelled: true, planes: 2, killed: true},
		"cancelled, killed and off":      {cancelled: true, planes: 2, killed: true, off: true, refused: unsaid},
	}, func(t *testing.T, lab *Lab, c resetAfterLeaving) {
		lab.Patch(everywhere)
		cp1 := planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}
		if !c.cancelled {
			c.play(t, lab, "take-down/stop", func(c *Client) func(context.Context) error { return c.roll(cp1) })
			return
		}
		lab.Client().rollKilled(before("finish/keep"), cp1)
		time.Sleep(3 * time.Minute)
		c.play(t, lab, "put-back/stop", func(c *Client) func(context.Context) error { return c.giveUp("cp1") })
	})
}

// One worker's failure downgraded etcd (omni #2373). A rollback across a minor version of etcd is refused.
func TestPeers18EtcdNeverGoesBack(t *testing.T) {
	eachLong(t, threePlanes, storiesOf("3.6.11", "3.7.0"), func(t *testing.T, lab *Lab, kept string) {
		lab.Patch(everywhere)
		lab.as(firstRun).mustRoll(policyFor("cp1"))
		lab.editRecord("cp1", func(rec *parking.Record) { rec.Kept[0].Etcd = kept })
		from := len(lab.Recorder.Calls())
		err := lab.as(secondRun).goBack("cp1")(t.Context())
		if kept == "3.7.0" {
			must(t, err)
			requireMembers(t, lab, "", false)
			return
		}
		requireRefused(t, err, "cp1: its etcd was 3.6.11 and is 3.7.")
		lab.requireLeftAlone(from, "cp1")
	})
}

func (l *Lab) recordOf(node string) (park int, rec parking.Record) {
	l.t.Helper()
	park = l.parkingOf(node)
	mustBe(l.t, park != 0, "nothing of %s is kept or parked", node)
	rec, _, err := parking.ReadRecord(cluster.VM{Config: l.vmConfig(park)})
	must(l.t, err)
	return park, rec
}

func (l *Lab) editRecord(node string, edit func(*parking.Record)) {
	l.t.Helper()
	park, rec := l.recordOf(node)
	edit(&rec)
	l.EditVM(park, "description", valueOf(rec.Description())(l.t))
}

// TestPeers19TheLastOneStays: the only remaining control plane was cordoned (kured #841), or deleted.
func TestPeers19TheLastOneStays(t *testing.T) {
	type story struct {
		planes int
		off    []string
		after  bool // after the plan
		text   string
	}
	options := func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: true} }
	eachLongIn(t, options, map[string]story{
		"one of three is off":                  {3, []string{"cp2"}, false, "other nodes are not Ready: cp2"},
		"one of three is off, after the plan":  {3, []string{"cp2"}, true, "other nodes are not Ready: cp2"},
		"two of three are off":                 {3, []string{"cp2", "cp3"}, false, "etcd"},
		"two of three are off, after the plan": {3, []string{"cp2", "cp3"}, true, "etcd"},
		"one of two is off":                    {2, []string{"cp2"}, false, "etcd"},
		"one of two is off, after the plan":    {2, []string{"cp2"}, true, "etcd"},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		from := len(lab.Recorder.Calls())
		off := sync.OnceFunc(func() {
			for _, name := range c.off {
				must(t, lab.World.PowerOff(lab.node(name).VMID))
			}
			time.Sleep(time.Minute)
		})
		if !c.after {
			off()
		}
		user := lab.Client().confirms(func(planning.Plan) { off() })
		_, err := user.Roll(t.Context(), planning.Policy{Only: []string{"cp1"}, AcceptOutage: c.text == "etcd"})
		require(t, err != nil && strings.Contains(err.Error(), c.text) && len(fault.Hints(err)) != 0,
			"err = %v, hints %q, want %q", err, fault.Hints(err), c.text)
		lab.requireLeftAlone(from, "cp1")
	})
}

// A request went to the wrong machine (omni #888). TestTalosFaults redirects an address during a roll, this one before.
func TestPeers20TheRightMachineAnswers(t *testing.T) {
	long(t)
	eachFault(t, map[string]*talosFault{
		"without a certificate": {
			o: threePlanes, rolls: "cp1", begins: led("cp2"), mends: straight,
			says: []string{"its certificate is not of the talosconfig's cluster"}, stands: untouched,
		},
		"with a certificate for that address, as a virtual one has": {
			o: threePlanes, rolls: "cp1", first: certified("127.42.7.11", "cp2"), begins: led("cp2"), mends: straight,
			says: []string{"127.42.7.11 answers with UUID 5ec0ffee-0000-4000-8000-000000009002"}, stands: untouched,
		},
	})
}

// A machine that joins etcd removes the member with its own name (talos PR #3715): nothing goes while two have one.
func TestPeers17ANameOfTwo(t *testing.T) {
	type story struct {
		named map[string]string // the members of etcd; nil: wk2 is named cp2
		kind  fault.Kind
		text  string
	}
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 2}, map[string]story{
		"two members of etcd":            {map[string]string{"cp3": "cp2"}, fault.Refused, "etcd has two members named cp2"},
		"a member of another name":       {map[string]string{"cp2": "old"}, fault.Refused, "which is named old: when the machine joins again"},
		"another machine's member":       {map[string]string{"cp2": "cp3", "cp3": "cp2"}, fault.Refused, "but what runs on 127.42.7.13 is member"},
		"another machine, without VMIDs": {nil, fault.Config, "nodes cp2 and wk2 are both VM 9032"},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		if c.named != nil {
			rename(t, lab, c.named)
		} else {
			impostor(t, lab, "cp2", "wk2")
			for _, n := range lab.Nodes {
				lab.Replace("recast.yaml", fmt.Sprintf(", vmid: %d", n.VMID), "")
			}
		}
		from := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), policyFor("cp2"))
		requireFault(t, err, c.kind, c.text)
		require(t, len(fault.Hints(err)) != 0, "no hint: %v", err)
		requireNone(t, lab.touched(from, "cp2"), "cp2 was touched")
	})
}

func rename(t *testing.T, l *Lab, names map[string]string) {
	t.Helper()
	for node := range names {
		must(t, l.World.PowerOff(l.node(node).VMID))
	}
	for node, name := range names {
		l.editEtcd(t, node, fmt.Sprintf(`"Name":%q`, node), fmt.Sprintf(`"Name":%q`, name))
	}
	for node := range names {
		must(t, l.World.PowerOn(l.node(node).VMID))
	}
	time.Sleep(2 * time.Minute)
}

func (l *Lab) editEtcd(t *testing.T, node string, old, fresh string) {
	t.Helper()
	n := l.node(node)
	media := l.World.Media(volidOf(l, n.VMID, "scsi0"), n.Host)
	disk := valueOf(artefact.ReadDisk(media.Bytes()))(t)
	edited := false
	for i, p := range disk.Partitions {
		data := bytes.Replace(p.Data, []byte(old), []byte(fresh), 1)
		edited = edited || !bytes.Equal(data, p.Data)
		disk.Partitions[i].Data = data
	}
	mustBe(t, edited, "the system disk of %s has no %s", node, old)
	media.Write(artefact.WriteDisk(disk))
}

func impostor(t *testing.T, l *Lab, name, machine string) {
	t.Helper()
	config := valueOf(l.Talos.MachineConfig(talosapi.Machine{Hostname: name, ControlPlane: true, Installer: "ghcr.io/siderolabs/installer:" + sim.TalosVersion, InstallSerial: "sys-" + machine}))(t)
	l.apply(machine, config)
}

// A member is removed that keeps its data (facts: "the member has been permanently removed from the cluster"). doctor
// says so. If the data is on the system disk, a roll repairs it; else the roll is refused, and the remedy works.
func TestRemovedMember(t *testing.T) {
	eachLongStory(t, map[string]bool{"on the system disk": false, "on a disk of its own": true}, func(t *testing.T, onData bool) {
		lab := New(t, sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: onData}) // whose etcd's disk is wiped on purpose
		lab.Patch(everywhere)
		removed := lab.memberIDs()["cp2"]
		lab.removeMember(removed)
		time.Sleep(time.Minute)

		res := diagnosis(t, lab.Client())
		const says = "Talos: etcd: cp2 is not a member of etcd (cp1, cp3 are), but has data of one: it was removed, and its etcd restarts for ever"
		requireSays(t, strings.Join(problems(res), "\n"), says)
		require(t, res.Err() != nil, "doctor finds nothing wrong")
		plan := lab.planOf(lab.Client(), "cp2", policyFor("cp2"))
		require(t, slices.ContainsFunc(plan.Drift.Notes, func(n string) bool {
			return strings.Contains(n, "its machine is not well: ") && strings.Contains(n, "etcd")
		}), "the plan's notes: %q", plan.Drift.Notes)

		from := len(lab.Recorder.Calls())
		if _, err := lab.Client().Roll(t.Context(), policyFor("cp2")); onData {
			requireRefused(t, err, "cp2 is not a member of etcd (cp1, cp3 are), and with the data that it has it can never join again")
			lab.requireLeftAlone(from, "cp2")
			lab.reset("cp2", "EPHEMERAL") // as the hint says
			lab.as(secondRun).mustRoll(policyFor("cp2"))
		} else if err != nil {
			t.Fatal(err)
		}
		requireMembers(t, lab, "", false)
		require(t, lab.memberIDs()["cp2"] != removed, "cp2 is the removed member")
		must(t, diagnosis(t, lab.Client()).Err())
		requireDrift(t, lab, "cp1", "cp3", "wk1")
		if broken := lab.World.Violations(); onData {
			require(t, len(broken) == 1, "cp2's etcd was wiped, as the hint says: %q", broken)
		} else {
			lab.RequireIntact()
		}
	})
}

func (l *Lab) removeMember(id string) {
	l.t.Helper()
	member := valueOf(strconv.ParseUint(id, 16, 64))(l.t)
	l.talosctl("cp1", func(ctx context.Context, c *client.Client) error {
		return c.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: member})
	})
}

func (l *Lab) reset(node string, labels ...string) {
	l.t.Helper()
	must(l.t, l.ResetNode(l.t.Context(), node, labels...))
	time.Sleep(2 * time.Minute)
}

// If a control plane has formed its own etcd, doctor says so whomever it asks first, and advises to wipe nothing.
func TestDoctorOfTwoEtcds(t *testing.T) {
	inLongLab(t, threePlanes, func(t *testing.T, lab *Lab) {
		splitBrain(lab)
		time.Sleep(time.Minute)
		checks := cluster.Where(diagnosis(t, lab.Client()).Checks, func(c checkup.Check) bool { return c.What == "etcd" })
		all := fmt.Sprintf("%+v", checks)
		requireSays(t, all, "cp3 is not a member of etcd (cp1, cp2 are), but runs etcd member ", "there are two etcds")
		require(t, !strings.Contains(all, "talosctl reset"), "doctor says\n%s", all)
	})
}

// Without the document of the volume ETCD Talos uses an empty directory: nothing lifts that for a node that keeps its
// system disk. With a new one, and acceptLoss, the member leaves etcd and joins it again; the volume stays, empty.
func TestAFileWithoutEtcdsVolume(t *testing.T) {
	long(t)
	inDamagedLab(t, sim.Options{ControlPlanes: 3, Workers: sim.None, EtcdOnData: true, EtcdVolume: true, TalosVersion: talos14}, func(t *testing.T, lab *Lab) {
		only := policyFor("cp2")
		own := lab.configOf("cp2")
		docs := strings.Split(string(own), "---\n")
		kept := slices.DeleteFunc(slices.Clone(docs), func(d string) bool { return strings.Contains(d, "kind: VolumeConfig\nname: ETCD\n") })
		mustBe(t, len(kept) == len(docs)-1, "%d of %d documents are left", len(kept), len(docs))
		files := configFiles{"cp2": cluster.Secret(strings.Join(kept, "---\n"))}
		member := func() string { return lab.memberIDs()["cp2"] }
		before, was := lab.machine("cp2"), member()
		const lacks = "its file in talos.machineConfigs lacks VolumeConfig ETCD, or its provisioning, whose volume is on the disk sdb"
		refuse := func(strategy cluster.Strategy, lifted bool) {
			t.Helper()
			user := files.user(lab, firstRun)
			n := lab.planOf(user, "cp2", only)
			refused := strings.Join(n.Refused, "\n")
			require(t, n.Strategy == strategy && strings.Contains(refused, lacks) && strings.Contains(refused, "or name ETCD in nodes[].acceptLoss") == lifted,
				"%s: planned as %s, refused %q", strategy, n.Strategy, n.Refused)
			requireRefused(t, user.roll(only)(t.Context()), lacks)
			now := lab.machine("cp2")
			require(t, now.BootID == before.BootID && member() == was, "%s: cp2 was touched", strategy)
		}
		refuse(cluster.ApplyConfig, false)
		lab.Patch(everywhere)
		refuse(cluster.Recreate, true)
		lab.Replace("recast.yaml", "{name: cp2,", "{name: cp2, acceptLoss: [ETCD],")
		user := files.user(lab, secondRun)
		n := lab.planOf(user, "cp2", only)
		if n.Strategy != cluster.Recreate || n.EtcdKept || len(n.Refused) > 0 || !slices.ContainsFunc(n.WillLose, func(text string) bool {
			return strings.HasPrefix(text, lacks) && strings.Contains(text, "its member leaves etcd, which deletes what is on it")
		}) {
			t.Fatalf("planned as %s, etcd kept %t, refused %q, will lose %q", n.Strategy, n.EtcdKept, n.Refused, n.WillLose)
		}
		must(t, user.roll(only)(t.Context()))
		now := lab.machine("cp2")
		require(t, now.BootID != before.BootID && member() != was && member() != "" && len(lab.EtcdMembers()) == 3,
			"etcd has %+v, and cp2 was member %s", lab.EtcdMembers(), was)
		requireSame(t, []string{"sdb"}, now.DisksWith("ETCD"), "the volume is on (-want +got)")
		lab.requireEtcd()
	})
}

// TestBackup needs only the role os:etcd:backup and changes nothing, whatever is wrong with etcd.
func TestBackup(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		endpoints := cluster.Each(controlPlanes, func(name string) string { return lab.node(name).Addr.String() })
		config := valueOf(lab.Talos.Talosconfig(role.EtcdBackup, endpoints...))(t)
		lab.Write("talosconfig", config)
		changes := lab.Recorder.Mutations()
		var files []string
		for range 3 {
			res := valueOf(lab.Client().Backup(t.Context(), pipeline.BackupOptions{Keep: 2}))(t)
			require(t, len(res.Warnings) == 0 && res.Revision != 0 && len(res.Members) == 3, "%+v", res)
			files = append(files, filepath.Base(res.File))
			require(t, slices.Equal(res.Removed, files[:max(0, len(files)-2)]), "removed %q of %q", res.Removed, files)
			time.Sleep(time.Second)
		}
		requireSame(t, files[1:], lab.snapshotFiles(), "files (-want +got)")

		back := func(to string) (pipeline.BackupResult, error) {
			return lab.Client().Backup(t.Context(), pipeline.BackupOptions{To: filepath.Join(lab.Dir, to)})
		}
		lab.breakEtcd(talosapi.EtcdFault{NoSpace: true}, "cp3")
		lab.breakEtcd(talosapi.EtcdFault{Hung: true}, "cp2")
		time.Sleep(10 * time.Second)
		res := valueOf(back("one.db"))(t)
		mustBe(t, len(lab.Read("one.db")) == int(res.SizeBytes), "%+v", res)
		requireSays(t, strings.Join(res.Warnings, "\n"),
			"cp2 does not answer: 127.42.7.12: gave up after 15s: read etcd's status", "alarm NOSPACE on member cp3")
		requireFault(t, errOf(back("one.db")), fault.Config, "one.db exists already")

		lab.breakEtcd(talosapi.EtcdFault{Corrupt: true}, "cp3")
		time.Sleep(10 * time.Second)
		requireRefused(t, errOf(back("corrupt.db")), "etcd's members do not hold the same data, so no snapshot of it can be trusted: [alarm CORRUPT on member cp3]")
		lab.breakEtcd(talosapi.EtcdFault{Down: true}, "cp2", "cp3")
		time.Sleep(10 * time.Second)
		requireRefused(t, errOf(back("alone.db")), "no member of etcd that answers follows a leader")
		for _, name := range []string{"corrupt.db", "alone.db"} {
			require(t, os.IsNotExist(errOf(os.Stat(filepath.Join(lab.Dir, name)))), "%s is there", name)
		}
		requireSame(t, changes, lab.Recorder.Mutations(), "… calls that change something (-want +got)")
	})
}

const snapshots = ".recast/etcd"

func (l *Lab) snapshotFiles() []string {
	l.t.Helper()
	entries, err := os.ReadDir(filepath.Join(l.Dir, snapshots))
	if err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		requireSame(l.t, "-rw-------", valueOf(e.Info())(l.t).Mode().String(), "mode of %s (-want +got)", e.Name())
		b := l.Read(filepath.Join(snapshots, e.Name()))
		body := b[:max(0, len(b)-sha256.Size)]
		sum := sha256.Sum256(body)
		require(l.t, len(body) >= 4096 && bytes.Equal(sum[:], b[len(body):]), "%s does not match its checksum", e.Name())
		names = append(names, e.Name())
	}
	return names
}

func TestSnapshotOfEtcd(t *testing.T) {
	cut, flipped, broken := talosapi.EtcdFault{Snapshot: talosapi.SnapshotCut}, talosapi.EtcdFault{Snapshot: talosapi.SnapshotFlipped}, talosapi.EtcdFault{Snapshot: talosapi.SnapshotBroken}
	type story struct {
		faults map[string]talosapi.EtcdFault
		asked  []string
		texts  []string // of the refusal
	}
	eachLong(t, threePlanes, map[string]story{
		"whole":                  {nil, []string{"cp1"}, nil},
		"broken on the first":    {map[string]talosapi.EtcdFault{"cp1": broken}, []string{"cp1", "cp2"}, nil},
		"wrong on the first two": {map[string]talosapi.EtcdFault{"cp1": cut, "cp2": flipped}, []string{"cp1", "cp2", "cp3"}, nil},
		"each in a way of its own": {map[string]talosapi.EtcdFault{"cp1": cut, "cp2": flipped, "cp3": broken}, []string{"cp1", "cp2", "cp3"}, []string{
			"snapshot of etcd from cp1: snapshot has ", "snapshot of etcd from cp2: snapshot does not match its checksum", "snapshot of etcd from cp3: ",
			"no control plane gave a usable snapshot of etcd",
		}},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		for node, f := range c.faults {
			lab.breakEtcd(f, node)
		}
		touched := false // a control plane was, before the snapshot
		var asked []string
		from := len(lab.Recorder.Calls())
		lab.Recorder.Hooks(func(call record.Call) error {
			if asksForSnapshot(call) {
				asked = append(asked, lab.nameOf(call.Target))
				touched = touched || len(lab.touched(from, "cp1")) > 0
			}
			return nil
		}, nil)
		_, err := lab.Client().Roll(t.Context(), policyFor("cp1"))
		requireSame(t, c.asked, asked, "asked for a snapshot (-want +got)")
		require(t, !touched, "it was asked for after cp1 was touched")
		var want []string
		if c.texts == nil {
			want = []string{"etcd-lab-20000101-0000-feed.db"}
			must(t, err)
		} else {
			requireFault(t, err, fault.Refused, c.texts...)
			lab.requireLeftAlone(from, "cp1")
		}
		requireSame(t, want, lab.snapshotFiles(), "files (-want +got)")
	})
}

// TestASnapshotForEachRunThatTakesAControlPlane: none for runs with only workers.
func TestASnapshotForEachRunThatTakesAControlPlane(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 1, EtcdOnData: true}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension) // only workers have it
		lab.as("20000101-0000-0001").mustRoll(planning.Policy{})
		requireNone(t, lab.snapshotFiles(), "a roll of workers left")
		var want []string
		for _, run := range []string{"20000101-0000-0002", "20000101-0000-0003"} {
			lab.Patch(everywhere)
			lab.as(run).mustRoll(planning.Policy{})
			want = append(want, "etcd-lab-"+run+".db")
			requireSame(t, want, lab.snapshotFiles(), "files (-want +got)")
		}
		requireCount(t, 2, lab.sent(0, asksForSnapshot), "snapshots that were asked for")
	})
}

func asksForSnapshot(c record.Call) bool { return c.Method == "/machine.MachineService/EtcdSnapshot" }

// The snapshot from before the crash is used for the rest of that run, unless it was damaged.
func TestTheSnapshotOfTheRunThatIsResumed(t *testing.T) {
	eachLong(t, threePlanes, map[string]bool{"whole": false, "spoilt": true}, func(t *testing.T, lab *Lab, spoil bool) {
		lab.Patch(everywhere)
		lab.Client().rollKilled(onServer("/qemu/9001/status/shutdown POST"), policyFor(controlPlanes...))
		file := filepath.Join(snapshots, "etcd-lab-20000101-0000-feed.db")
		if spoil {
			lab.Write(file, lab.Read(file)[:5000])
		}
		before := len(lab.Recorder.Calls())
		lab.as("20000101-0000-feed").mustRoll(policyFor(controlPlanes...))
		requireCount(t, map[bool]int{true: 1}[spoil], lab.sent(before, asksForSnapshot), "snapshots asked for again")
		requireCount(t, 1, lab.snapshotFiles(), "files")
	})
}

func (l *Lab) backUp() pipeline.BackupResult {
	l.t.Helper()
	return valueOf(l.Client().Backup(l.t.Context(), pipeline.BackupOptions{}))(l.t)
}

// kubernetes is the identities of the objects in Kubernetes, by key, without pods and frequently changing objects.
func (l *Lab) kubernetes() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, r := range store.Resources() {
		if r.GroupVersionResource == store.Pods() || r.Resource == "events" {
			continue
		}
		for _, o := range l.allStored(r.GroupVersionResource, "") {
			out[fmt.Sprint(r.Resource, " ", o.GetNamespace(), "/", o.GetName())] = fmt.Sprint(o.GetUID(), " ", o.GetLabels())
		}
	}
	return out
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func (l *Lab) note(name string) {
	l.t.Helper()
	must(l.t, errOf(l.Kube.Store().Create(l.t.Context(), configMaps, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Data: map[string]string{"is": name},
	})))
}

// TestRestoreOfTheOnlyControlPlane: its etcd is lost, and restored as it was saved.
func TestRestoreOfTheOnlyControlPlane(t *testing.T) {
	eachLongIn(t, func(domain string) sim.Options {
		return sim.Options{Workers: 1, Domain: domain}
	}, map[string]string{"without a domain": "", "with a domain": ".example.org"}, func(t *testing.T, lab *Lab, domain string) {
		cp1, wk1 := "cp1"+domain, "wk1"+domain
		lab.note("before")
		before, saved := lab.kubernetes(), lab.backUp()
		require(t, saved.Member == "cp1" && saved.Revision != 0 && len(saved.Warnings) == 0, "saved %+v", saved)
		lab.note("after")
		lab.reset(cp1, "EPHEMERAL")
		require(t, lab.kubernetesAnswers() != nil, "Kubernetes answers without etcd, whose members are %v", lab.memberIDs())
		rep := valueOf(lab.Client().Restore(t.Context(), saved.File, cp1))(t)
		require(t, rep.Outcome == "done" && !rep.Resumes && strings.Contains(rep.VM, "9001"), "report %+v", rep)
		requireSame(t, before, lab.kubernetes(), "Kubernetes (-before +after)")
		requireSame(t, []string{"cp1"}, slices.Collect(maps.Keys(lab.memberIDs())), "members (-want +got)")
		requireInSync(t, lab)
		lab.requireKubelets(wk1)
		require(t, len(rep.Afterwards) == 1 && strings.HasPrefix(rep.Afterwards[0], "restart whatever watches Kubernetes"),
			"afterwards %q", rep.Afterwards)

		// An etcd that has data is never overwritten.
		again := func(ctx context.Context) error { return errOf(lab.Client().Restore(ctx, saved.File, cp1)) }
		lab.refuses(again, cp1+" has etcd data already: it is never overwritten", cp1)
	})
}

// requireKubelets checks that the kubelets of these nodes see what is new: they start a pod.
func (l *Lab) requireKubelets(nodes ...string) {
	l.t.Helper()
	for _, name := range nodes {
		l.put(store.Pods(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "new-on-" + name, Namespace: "default"},
			Spec:       corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
		})
	}
	time.Sleep(time.Minute)
	for _, name := range nodes {
		o := l.stored(store.Pods(), "default", "new-on-"+name)
		requireSame(l.t, corev1.PodRunning, o.(*corev1.Pod).Status.Phase, "a new pod on %s (-want +got)", name)
	}
}

// restore is Restore of cp1 without its report.
func (c *Client) restore(file string) func(context.Context) error {
	return func(ctx context.Context) error { return errOf(c.Restore(ctx, file, "cp1")) }
}

// Killed after any changing call, and run again, it has the same result, with a single bootstrap request.
func TestRestoreIsInterrupted(t *testing.T) {
	// Its changes are those of the claim, an upload, a bootstrap, heartbeats, and those of the claim.
	eachLong(t, oneWorker(), storiesOf[int64](1, 2, 3, 4, 5, 6, 7, 8), func(t *testing.T, lab *Lab, nth int64) {
		before, saved := lab.kubernetes(), lab.backUp()
		lab.reset("cp1", "EPHEMERAL")
		user := lab.Client()
		var changes, bootstraps atomic.Int64
		lab.Recorder.Hooks(nil, func(c record.Call) {
			if c.Method == "/machine.MachineService/Bootstrap" {
				bootstraps.Add(1)
			}
			if c.Mutation && changes.Add(1) == nth {
				user.Kill()
			}
		})
		_, killed := user.Restore(t.Context(), saved.File, "cp1")
		time.Sleep(time.Minute)
		rep, err := lab.as(secondRun).Restore(t.Context(), saved.File, "cp1")
		switch {
		case killed == nil || err != nil && strings.Contains(err.Error(), "has etcd data already"):
			requireRefused(t, err, "has etcd data already") // it was all but over
		case err != nil:
			t.Fatalf("%+v, %v", rep, err)
		case rep.Resumes != (rep.Run == user.Run):
			t.Errorf("%+v", rep)
		}
		require(t, bootstraps.Load() == 1, "told to bootstrap %d times", bootstraps.Load())
		requireSame(t, before, lab.kubernetes(), "Kubernetes (-before +after)")
		requireDrift(t, lab)
	})
}

// TestRestoreLosesAnAnswer: recast checks whether a bootstrap was begun, and never just retries.
func TestRestoreLosesAnAnswer(t *testing.T) {
	eachLong(t, oneWorker(), map[string]bool{"to a bootstrap": true, "and the bootstrap": false}, func(t *testing.T, lab *Lab, arrives bool) {
		before, saved := lab.kubernetes(), lab.backUp()
		lab.reset("cp1", "EPHEMERAL")
		user := lab.Client()
		var asked, done atomic.Int64
		lab.Recorder.Hooks(func(c record.Call) error {
			if c.Method == "/machine.MachineService/Bootstrap" && asked.Add(1) == 1 && !arrives {
				return errKilled
			}
			return nil
		}, func(c record.Call) {
			if c.Method == "/machine.MachineService/Bootstrap" && done.Add(1) == 1 && arrives {
				user.Cut()
				time.AfterFunc(5*time.Second, user.Mend)
			}
		})
		_, err := user.Restore(t.Context(), saved.File, "cp1")
		if !arrives {
			requireError(t, err, "restore/recover-etcd: etcd on cp1: gave up after 3m0s; last seen: Preparing: Running pre state")
			require(t, len(fault.Hints(err)) > 0, "no hint: %v", err)
			requireNone(t, fault.Safe(err), "safe is …, after the request to bootstrap etcd")
			_, err = lab.Client().Restore(t.Context(), saved.File, "cp1")
		}
		require(t, err == nil && done.Load() == 1, "%d bootstraps, %v", done.Load(), err)
		requireSame(t, before, lab.kubernetes(), "Kubernetes (-before +after)")
	})
}

// A day after a restore that Talos completed a new one is possible; an etcd that a person began is recognized.
func TestRestoreOnceMore(t *testing.T) {
	eachLong(t, oneWorker(), map[string]bool{"completed by Talos": false, "begun by a person": true}, func(t *testing.T, lab *Lab, byHand bool) {
		saved := lab.backUp()
		lab.reset("cp1", "EPHEMERAL")
		user := lab.Client()
		if byHand {
			user.killedAt(t, onServer("/machine.MachineService/EtcdRecover"), user.restore(saved.File))
			lab.talosctl("cp1", bootstrap)
			time.Sleep(2 * time.Minute)
		} else {
			user.killedAt(t, onServer("/machine.MachineService/Bootstrap"), user.restore(saved.File))
			time.Sleep(24 * time.Hour)
			lab.note("since")
			rep := valueOf(lab.Client().Restore(t.Context(), saved.File, "cp1"))(t)
			require(t, rep.Run == user.Run && !rep.Bootstrapped.IsZero() && rep.Started.Sub(rep.Bootstrapped) >= 23*time.Hour,
				"%+v", rep)
			require(t, lab.kubernetes()["configmaps default/since"] != "", "changes in Kubernetes since then are lost")
		}
		requireRefused(t, lab.Client().restore(saved.File)(t.Context()), "cp1 has etcd data already: it is never overwritten")
	})
}

// TestRestoreIsRefused before anything is changed.
func TestRestoreIsRefused(t *testing.T) {
	type story struct {
		planes int
		spoil  func(l *Lab, file string)
		text   string
	}
	eachLongIn(t, func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1} }, map[string]story{
		"cut off": {1, func(l *Lab, file string) {
			name := strings.TrimPrefix(file, l.Dir)
			whole := l.Read(name)
			l.Write(name, whole[:len(whole)-512])
		}, "does not match its checksum: it was cut off"},
		"three control planes": {3, func(*Lab, string) {}, "cp1 is not the only control plane: Talos knows cp2 as well"},
		"two that were off": {3, func(l *Lab, _ string) {
			must(l.t, l.World.PowerOff(l.node("cp2").VMID))
			must(l.t, l.World.PowerOff(l.node("cp3").VMID))
			time.Sleep(45 * time.Minute) // Talos' discovery drops them after 30
			l.reset("cp1", "EPHEMERAL")
		}, "can't be determined: Talos' discovery does not know cp2, cp3 at present"},
		"another VM": {1, func(l *Lab, _ string) { l.Replace("recast.yaml", "vmid: 9001", "vmid: 9002") }, "not VM 9002 as configured"},
	}, func(t *testing.T, lab *Lab, c story) {
		saved := lab.backUp()
		c.spoil(lab, saved.File)
		ids := lab.memberIDs()
		lab.refuses(lab.Client().restore(saved.File), c.text, "cp1")
		requireSame(t, ids, lab.memberIDs(), "members of etcd (-before +after)")
	})
}
