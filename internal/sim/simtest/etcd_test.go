package simtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// etcdWatch looks at etcd and the control planes before and after every call of a roll.
type etcdWatch struct {
	lab *Lab

	mu     sync.Mutex
	ids    map[string]string   // of the members when the watch began, by name
	fewest int                 // members that there ever were
	out    int                 // control planes that were ever off at once
	asked  []string            // calls that change etcd: method and node
	wrong  []string            // what must not be
	last   map[string]string   // members before the last such call
	lost   map[string][]string // members that were gone right after a node was made to leave, by node
}

// watchEtcd begins to look; it replaces the recorder's hooks.
func (l *Lab) watchEtcd() *etcdWatch {
	w := &etcdWatch{lab: l, ids: l.memberIDs(), fewest: len(l.EtcdMembers()), lost: map[string][]string{}}
	l.Recorder.Hooks(w.before, w.after)
	return w
}

// memberIDs are the members of etcd that vote, by name.
func (l *Lab) memberIDs() map[string]string {
	ids := map[string]string{}
	for _, m := range l.EtcdMembers() {
		if !m.Learner {
			ids[m.Name] = m.ID
		}
	}
	return ids
}

func (w *etcdWatch) method(c record.Call) (string, bool) {
	method, isMachine := strings.CutPrefix(c.Method, "/machine.MachineService/Etcd")
	return method, isMachine && c.Mutation
}

func (w *etcdWatch) before(c record.Call) error {
	method, ok := w.method(c)
	if !ok {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = w.lab.memberIDs()
	node := w.lab.nameOf(c.Target)
	w.asked = append(w.asked, method+" "+node)
	if method == "LeaveCluster" {
		if len(w.last) != len(w.ids) {
			w.wrong = append(w.wrong, fmt.Sprintf("%s was made to leave while the voting members were %v", node, w.last))
		}
		if n := w.lab.node(node); !w.lab.runs(n) {
			w.wrong = append(w.wrong, node+" was made to leave when its VM was off")
		}
	}
	return nil
}

func (w *etcdWatch) after(c record.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.lab.memberIDs()
	if method, ok := w.method(c); ok && method == "LeaveCluster" {
		for _, name := range slices.Sorted(maps.Keys(w.last)) {
			if now[name] != w.last[name] {
				w.lost[w.lab.nameOf(c.Target)] = append(w.lost[w.lab.nameOf(c.Target)], name)
			}
		}
	}
	w.fewest = min(w.fewest, len(now))
	out := 0
	for _, n := range w.lab.Nodes {
		if n.ControlPlane && !w.lab.runs(n) {
			out++
		}
	}
	w.out = max(w.out, out)
}

func (l *Lab) runs(n sim.Node) bool {
	vm, err := l.World.LookupVM(n.Host, n.VMID)
	return err == nil && vm.Running
}

// nameOf is the name of the node at an address.
func (l *Lab) nameOf(addr string) string {
	for _, n := range l.Nodes {
		if n.Addr.String() == addr {
			return n.Name
		}
	}
	return addr
}

// mustRoll rolls with what a user has asked for.
func (l *Lab) mustRoll(run string, p cluster.Policy) cluster.Plan {
	l.t.Helper()
	c := l.Client()
	c.Run = run
	rep, err := c.Roll(l.t.Context(), p)
	if err != nil {
		l.t.Fatalf("%v\nhints %q", err, fault.Hints(err))
	}
	return rep.Plan
}

var controlPlanes = []string{"cp1", "cp2", "cp3"}

// TestPeers14MembersSurviveARoll: upgrades of three control planes lost or
// removed members, and wiped single ones (talos #9153, #9789, #8759, #7423, #5794, #1768).
func TestPeers14MembersSurviveARoll(t *testing.T) {
	t.Run("three", func(t *testing.T) {
		inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
			lab.Patch(everywhere)
			w := lab.watchEtcd()
			lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes})
			requireMembers(t, lab, "", false)
			if w.fewest != 2 || len(w.wrong) > 0 {
				t.Errorf("etcd once had %d voting members: %q", w.fewest, w.wrong)
			}
		})
	})
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run("one, told to "+string(s), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(s)+"\n")
				lab.Patch(everywhere)
				ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
				_, err := lab.Client().Roll(t.Context(), cluster.Policy{AcceptOutage: true})
				requireRefused(t, err, "cp1: the only etcd member's data would be lost with the system disk: use in-place, or put etcd's data on a persistent disk")
				lab.requireServing(from, "cp1")
				lab.requireServing(from, "wk1")
				if diff := cmp.Diff(ids, lab.memberIDs()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// requireRefused fails unless something was refused as unsafe for that reason.
func requireRefused(t *testing.T, err error, text string) {
	t.Helper()
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), text) {
		t.Errorf("err = %v (kind %d), want it refused: %s", err, fault.KindOf(err), text)
	}
}

// TestPeers15OneAtATime: the next member was removed before the last one was
// back (cacppt #225, #150).
func TestPeers15OneAtATime(t *testing.T) {
	for _, onData := range []bool{false, true} {
		t.Run(fmt.Sprintf("onData=%t", onData), func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: onData}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				w := lab.watchEtcd()
				lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes, MaxUnavailable: func(int) int { return 3 }})
				if w.out != 1 || len(w.wrong) > 0 {
					t.Errorf("%d control planes were off at once: %q", w.out, w.wrong)
				}
				if want := map[bool]int{false: 2, true: 3}[onData]; w.fewest != want {
					t.Errorf("etcd once had %d voting members, want %d", w.fewest, want)
				}
				requireMembers(t, lab, "", false)
			})
		})
	}
}

// TestPeers16TheNodeItselfLeaves: removing a member by name took away the wrong
// node's data (talos #3340).
func TestPeers16TheNodeItselfLeaves(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		w := lab.watchEtcd()
		lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes})
		want := []string{
			"ForfeitLeadership cp1", "LeaveCluster cp1", "ForfeitLeadership cp2", "LeaveCluster cp2", "ForfeitLeadership cp3", "LeaveCluster cp3",
		}
		if diff := cmp.Diff(want, w.asked); diff != "" {
			t.Errorf("what was asked of etcd (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string][]string{"cp1": {"cp1"}, "cp2": {"cp2"}, "cp3": {"cp3"}}, w.lost); diff != "" {
			t.Errorf("members gone after each leave (-want +got):\n%s", diff)
		}
		for _, wrong := range w.wrong {
			t.Error(wrong)
		}
		for name, id := range lab.memberIDs() {
			if w.ids[name] == id {
				t.Errorf("%s is the same member, although its data was lost", name)
			}
			requireRecord(t, lab, name, true)
		}
		lab.RequireIntact()
	})
}

// requireRecord looks at what the parking VM of a control plane says of etcd.
func requireRecord(t *testing.T, lab *Lab, node string, left bool) {
	t.Helper()
	res, err := lab.Client().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range res.Kept {
		if k.Node == node {
			vm, err := lab.World.LookupVM(lab.node(node).Host, int(k.Parking))
			if err != nil {
				t.Fatal(err)
			}
			rec, _, err := cluster.ReadRecord(cluster.VM{Config: vm.Config})
			if err != nil || len(rec.Kept) != 1 || rec.Kept[0].Left != left || rec.Kept[0].EtcdOn != left {
				t.Errorf("the record of %s: %+v, %v", node, rec.Kept, err)
			}
			return
		}
	}
	t.Errorf("no system disk of %s is kept: %+v", node, res.Kept)
}

// TestEtcdDataThatIsKept is the other way round: a member that was removed could
// never use its data again (facts: "the member has been permanently removed").
func TestEtcdDataThatIsKept(t *testing.T) {
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace} {
		t.Run(string(s), func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: s != cluster.InPlace}, func(t *testing.T, lab *Lab) {
				lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(s)+"\n")
				lab.Patch(everywhere)
				w := lab.watchEtcd()
				lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes})
				if len(w.asked) > 0 {
					t.Errorf("what was asked of etcd: %q", w.asked)
				}
				if diff := cmp.Diff(w.ids, lab.memberIDs()); diff != "" {
					t.Errorf("the members (-before +after):\n%s", diff)
				}
				if s != cluster.InPlace {
					requireRecord(t, lab, "cp1", false)
				}
				requireMembers(t, lab, "", false)
			})
		})
	}
}

// TestPeers17NameAndAddressStay: a machine that joins etcd removes the member of
// its own name, whoever that is (talos PR #3715).
func TestPeers17NameAndAddressStay(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		before := lab.identities()
		lab.mustRoll("20000101-0000-feed", cluster.Policy{Only: controlPlanes})
		if diff := cmp.Diff(before, lab.identities()); diff != "" {
			t.Errorf("name, UUID and address (-before +after):\n%s", diff)
		}
	})
}

// identities is who each node is.
func (l *Lab) identities() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, n := range l.Nodes {
		k, err := l.Kube.Node(l.t.Context(), n.Name)
		if err != nil {
			l.t.Fatal(err)
		}
		out[n.Name] = fmt.Sprint(k.Status.NodeInfo.SystemUUID, " ", k.Status.Addresses)
	}
	return out
}

// TestPeers17ANameOfTwo: see above. Nothing is taken out while a name is there twice.
func TestPeers17ANameOfTwo(t *testing.T) {
	cases := map[string]struct {
		spoil func(t *testing.T, l *Lab)
		kind  fault.Kind
		text  string
	}{
		"two members of etcd": {func(t *testing.T, l *Lab) { rename(t, l, "cp3", "cp2") }, fault.Refused, "etcd has two members named cp2"},
		"another machine's member": {
			func(t *testing.T, l *Lab) { swapNames(t, l, "cp2", "cp3") }, fault.Refused, "is not what runs on 127.42.7.12: another machine has its name",
		},
		"two VMs": {
			func(_ *testing.T, l *Lab) {
				l.DefineVM(9050, map[string]string{"name": "cp2", "smbios1": "uuid=" + l.node("cp2").UUID})
			}, fault.Config, "node cp2: 2 VMs have its SMBIOS UUID",
		},
		"another machine": {
			func(t *testing.T, l *Lab) { impostor(t, l, "cp2", "wk2") }, fault.Refused,
			`node cp2: its UUID 5ec0ffee-0000-4000-8000-000000009032 belongs to VM 9032 "wk2" on pve1, not to VM 9002 as configured`,
		},
		"another machine, without VMIDs": {
			func(t *testing.T, l *Lab) {
				impostor(t, l, "cp2", "wk2")
				for _, n := range l.Nodes {
					l.Replace("recast.yaml", fmt.Sprintf(", vmid: %d", n.VMID), "")
				}
			}, fault.Config, "nodes cp2 and wk2 are both VM 9032",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 2}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				c.spoil(t, lab)
				from := len(lab.Recorder.Calls())
				_, err := lab.Client().Roll(t.Context(), cluster.Policy{Only: []string{"cp2"}})
				t.Log(err, fault.Hints(err))
				if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) || len(fault.Hints(err)) == 0 {
					t.Errorf("err = %v, hints %q, want %q", err, fault.Hints(err), c.text)
				}
				if touched := lab.touched(from, "cp2"); len(touched) > 0 {
					t.Errorf("cp2 was touched: %q", touched)
				}
			})
		})
	}
}

// rename starts a control plane's member of etcd under another's name.
func rename(t *testing.T, l *Lab, node, name string) {
	t.Helper()
	offline(t, l, func() {
		l.editEtcd(t, node, named(node), named(name))
	}, node)
}

// swapNames does so with two at once.
func swapNames(t *testing.T, l *Lab, a, b string) {
	t.Helper()
	offline(t, l, func() {
		l.editEtcd(t, a, named(a), named(b))
		l.editEtcd(t, b, named(b), named(a))
	}, a, b)
}

// named is a name as etcd's data has it.
func named(node string) string { return fmt.Sprintf(`"Name":%q`, node) }

func offline(t *testing.T, l *Lab, do func(), nodes ...string) {
	t.Helper()
	for _, name := range nodes {
		if err := l.World.PowerOff(l.node(name).VMID); err != nil {
			t.Fatal(err)
		}
	}
	do()
	for _, name := range nodes {
		if err := l.World.PowerOn(l.node(name).VMID); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * time.Minute)
}

// editEtcd changes what a control plane that is off has of etcd on its system disk.
func (l *Lab) editEtcd(t *testing.T, node string, old, fresh string) {
	t.Helper()
	n := l.node(node)
	vm, err := l.World.LookupVM(n.Host, n.VMID)
	if err != nil {
		t.Fatal(err)
	}
	volid, _, _ := strings.Cut(vm.Config["scsi0"], ",")
	media := l.World.Media(volid, n.Host)
	disk, err := artefact.ReadDisk(media.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	edited := false
	for i, p := range disk.Partitions {
		data := bytes.Replace(p.Data, []byte(old), []byte(fresh), 1)
		edited = edited || !bytes.Equal(data, p.Data)
		disk.Partitions[i].Data = data
	}
	if !edited {
		t.Fatalf("the system disk of %s has no %s", node, old)
	}
	media.Write(artefact.WriteDisk(disk))
}

// impostor gives another machine a control plane's configuration, name included.
func impostor(t *testing.T, l *Lab, name, machine string) {
	t.Helper()
	config, err := l.Talos.MachineConfig(talosapi.Machine{Hostname: name, ControlPlane: true, Installer: "ghcr.io/siderolabs/installer:" + sim.TalosVersion, InstallSerial: "sys-" + machine})
	if err != nil {
		t.Fatal(err)
	}
	l.talosctl(machine, func(ctx context.Context, c *client.Client) error {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_REBOOT})
		return err
	})
	time.Sleep(2 * time.Minute)
}

// TestPeers18AWorkersFailureIsItsOwn: one worker's failure reverted the whole
// cluster and downgraded etcd (omni #2373).
func TestPeers18AWorkersFailureIsItsOwn(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  order: workers-first\n  canary: false\n  drain: {timeout: 1m}\n")
		lab.Patch(everywhere)
		lab.Budget(0)
		ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), cluster.Policy{})
		if err == nil || !strings.Contains(err.Error(), "roll/workers/wk1/take-down/drain: drain wk1") {
			t.Errorf("err = %v", err)
		}
		for _, name := range controlPlanes {
			lab.requireServing(from, name)
		}
		if diff := cmp.Diff(ids, lab.memberIDs()); diff != "" {
			t.Error(diff)
		}
		requireDrift(t, lab, "cp1", "cp2", "cp3", "wk1", "wk2")
	})
}

// TestPeers18EtcdNeverGoesBack: see above. The way back is refused across a minor version of etcd.
func TestPeers18EtcdNeverGoesBack(t *testing.T) {
	for kept, refused := range map[string]bool{"3.6.11": true, "3.7.0": false} {
		t.Run(kept, func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				lab.mustRoll("20000101-0000-0001", cluster.Policy{Only: []string{"cp1"}})
				lab.editRecord("cp1", func(rec *cluster.Record) { rec.Kept[0].Etcd = kept })
				from := len(lab.Recorder.Calls())
				c := lab.Client()
				c.Run = "20000101-0000-0002"
				_, err := c.Rollback(t.Context(), cluster.Policy{Only: []string{"cp1"}})
				if !refused {
					if err != nil {
						t.Error(err)
					}
					requireMembers(t, lab, "", false)
					return
				}
				requireRefused(t, err, "cp1: its etcd was 3.6.11 and is 3.7.")
				lab.requireServing(from, "cp1")
			})
		})
	}
}

// editRecord changes what a node's parking VM says.
func (l *Lab) editRecord(node string, edit func(*cluster.Record)) {
	l.t.Helper()
	res, err := l.Client().Status(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	for _, k := range res.Kept {
		if k.Node != node {
			continue
		}
		vm, err := l.World.LookupVM(l.node(node).Host, int(k.Parking))
		if err != nil {
			l.t.Fatal(err)
		}
		rec, _, err := cluster.ReadRecord(cluster.VM{Config: vm.Config})
		if err != nil {
			l.t.Fatal(err)
		}
		edit(&rec)
		text, err := rec.Description()
		if err != nil {
			l.t.Fatal(err)
		}
		l.EditVM(int(k.Parking), "description", text)
		return
	}
	l.t.Fatalf("nothing of %s is kept: %+v", node, res.Kept)
}

// TestPeers19TheLastOneStays: the only control plane that was left was cordoned
// (kured #841), or deleted.
func TestPeers19TheLastOneStays(t *testing.T) {
	cases := map[string]struct {
		planes int
		off    []string
		policy cluster.Policy
		text   string
	}{
		"one of three is off":  {3, []string{"cp2"}, cluster.Policy{Only: []string{"cp1"}}, "other nodes are not Ready: cp2"},
		"two of three are off": {3, []string{"cp2", "cp3"}, cluster.Policy{Only: []string{"cp1"}, AcceptOutage: true}, "etcd"},
		"one of two is off":    {2, []string{"cp2"}, cluster.Policy{Only: []string{"cp1"}, AcceptOutage: true}, "etcd"},
	}
	for name, c := range cases {
		for _, between := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after the plan=%t", name, between), func(t *testing.T) {
				inLab(t, sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: true}, func(t *testing.T, lab *Lab) {
					lab.Patch(everywhere)
					from := len(lab.Recorder.Calls())
					off := func() {
						for _, name := range c.off {
							if err := lab.World.PowerOff(lab.node(name).VMID); err != nil {
								t.Error(err)
							}
						}
						time.Sleep(time.Minute)
					}
					user := lab.Client()
					if between {
						user.Confirm = func(cluster.Plan) (bool, error) { off(); return true, nil }
					} else {
						off()
					}
					_, err := user.Roll(t.Context(), c.policy)
					t.Log(err, fault.Hints(err))
					if err == nil || !strings.Contains(err.Error(), c.text) {
						t.Errorf("err = %v, want %q", err, c.text)
					}
					lab.requireServing(from, "cp1")
				})
			})
		}
	}
}

// TestPeers20TheRightMachineAnswers: a request went to the wrong machine (omni
// #888). Here cp1's address leads to another one from some moment on.
func TestPeers20TheRightMachineAnswers(t *testing.T) {
	cases := map[string]struct {
		from   func(record.Call) bool // the moment; nil: from the start
		shared bool                   // the other machine has a certificate for that address, as with a virtual one
		text   string
	}{
		"from the start, without a certificate": {nil, false, "its certificate is not of the talosconfig's cluster"},
		"from the start":                        {nil, true, "127.42.7.11 answers with UUID 5ec0ffee-0000-4000-8000-000000009002"},
		"when it is told to leave etcd": {
			func(c record.Call) bool { return c.Method == http.MethodPatch && c.Target == "cp1" }, true,
			`make cp1 hand etcd's leadership over: 127.42.7.11: the machine has UUID "5ec0ffee-0000-4000-8000-000000009002", not "5ec0ffee-0000-4000-8000-000000009001": nothing was done`,
		},
		"when it is to be configured": {
			func(c record.Call) bool { return strings.HasSuffix(c.Path, "/qemu/9001/status/start") }, true,
			"127.42.7.11 answers with UUID 5ec0ffee-0000-4000-8000-000000009002, not 5ec0ffee-0000-4000-8000-000000009001",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				if c.shared {
					shareAddress(t, lab, "cp2", "cp1")
				}
				var wrong atomic.Bool
				wrong.Store(c.from == nil)
				lab.Recorder.Hooks(nil, func(call record.Call) {
					if c.from != nil && c.from(call) {
						wrong.Store(true)
					}
				})
				user := lab.Client()
				user.Reroute = func(addr string) string {
					if host, port, _ := net.SplitHostPort(addr); wrong.Load() && host == lab.node("cp1").Addr.String() {
						return net.JoinHostPort(lab.node("cp2").Addr.String(), port)
					}
					return addr
				}
				ids, from := lab.memberIDs(), len(lab.Recorder.Calls())
				_, err := user.Roll(t.Context(), cluster.Policy{Only: []string{"cp1"}})
				if err == nil || !strings.Contains(err.Error(), c.text) {
					t.Errorf("err = %v, want %q", err, c.text)
				}
				lab.requireServing(from, "cp2")
				if id := lab.memberIDs()["cp2"]; id != ids["cp2"] {
					t.Errorf("cp2 is etcd member %s, before: %s", id, ids["cp2"])
				}
				wrong.Store(false)
				c := lab.Client()
				c.Run = "20000101-0000-0002"
				if _, err := c.Roll(t.Context(), cluster.Policy{Only: []string{"cp1"}}); err != nil {
					t.Fatal(err)
				}
				requireMembers(t, lab, "", false)
				lab.RequireIntact()
			})
		})
	}
}

// shareAddress lets a machine's certificate be good for another one's address too.
func shareAddress(t *testing.T, l *Lab, machine, with string) {
	t.Helper()
	s, err := l.Client().connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.end()
	config, err := s.machines.Talos.MachineConfig(t.Context(), l.node(machine).Addr)
	if err != nil {
		t.Fatal(err)
	}
	shared := bytes.Replace(config, []byte("certSANs: []"), []byte("certSANs: ["+l.node(with).Addr.String()+"]"), 1)
	if bytes.Equal(shared, config) {
		t.Fatalf("no certSANs in the configuration of %s", machine)
	}
	l.talosctl(machine, func(ctx context.Context, c *client.Client) error {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: shared, Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
		return errors.Join(err, c.Reboot(ctx))
	})
	time.Sleep(2 * time.Minute)
}
