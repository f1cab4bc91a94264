package simtest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestPeers18EtcdNeverGoesBack: one worker's failure reverted the whole cluster and
// downgraded etcd (omni #2373). A rollback across a minor version of etcd is refused.
func TestPeers18EtcdNeverGoesBack(t *testing.T) {
	eachLong(t, threePlanes, storiesOf("3.6.11", "3.7.0"), func(t *testing.T, lab *Lab, kept string) {
		lab.Patch(everywhere)
		lab.mustRoll(firstRun, policyFor("cp1"))
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

// recordOf reads the record of a node's parking VM.
func (l *Lab) recordOf(node string) (park int, rec parking.Record) {
	l.t.Helper()
	if park = l.parkingOf(node); park == 0 {
		l.t.Fatalf("nothing of %s is kept or parked", node)
	}
	vm, err := l.World.LookupVM(l.node(node).Host, park)
	must(l.t, err)
	rec, _, err = parking.ReadRecord(cluster.VM{Config: vm.Config})
	must(l.t, err)
	return park, rec
}

// editRecord changes the record of a node's parking VM.
func (l *Lab) editRecord(node string, edit func(*parking.Record)) {
	l.t.Helper()
	park, rec := l.recordOf(node)
	edit(&rec)
	text := valueOf(rec.Description())(l.t)
	l.EditVM(park, "description", text)
}

// TestPeers19TheLastOneStays: the only remaining control plane was cordoned (kured #841), or deleted.
func TestPeers19TheLastOneStays(t *testing.T) {
	type story struct {
		planes int
		off    []string
		after  bool // after the plan
		text   string
	}
	cases := map[string]story{
		"one of three is off":                  {3, []string{"cp2"}, false, "other nodes are not Ready: cp2"},
		"one of three is off, after the plan":  {3, []string{"cp2"}, true, "other nodes are not Ready: cp2"},
		"two of three are off":                 {3, []string{"cp2", "cp3"}, false, "etcd"},
		"two of three are off, after the plan": {3, []string{"cp2", "cp3"}, true, "etcd"},
		"one of two is off":                    {2, []string{"cp2"}, false, "etcd"},
		"one of two is off, after the plan":    {2, []string{"cp2"}, true, "etcd"},
	}
	options := func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: true} }
	eachLongIn(t, options, cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		from := len(lab.Recorder.Calls())
		off := func() {
			for _, name := range c.off {
				must(t, lab.World.PowerOff(lab.node(name).VMID))
			}
			time.Sleep(time.Minute)
		}
		user := lab.Client()
		if c.after {
			user.Confirm = func(planning.Plan) (bool, error) { off(); return true, nil }
		} else {
			off()
		}
		_, err := user.Roll(t.Context(), planning.Policy{Only: []string{"cp1"}, AcceptOutage: c.text == "etcd"})
		require(t, err != nil && strings.Contains(err.Error(), c.text) && len(fault.Hints(err)) != 0,
			"err = %v, hints %q, want %q", err, fault.Hints(err), c.text)
		lab.requireLeftAlone(from, "cp1")
	})
}

// TestPeers20TheRightMachineAnswers: a request went to the wrong machine (omni #888). Here
// cp1's address is redirected to another one; TestTalosFaults does that during a roll.
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

// TestPeers17ANameOfTwo: a machine that joins etcd removes the member with its own name,
// whoever that is (talos PR #3715). While two have the same name, nothing is taken down.
func TestPeers17ANameOfTwo(t *testing.T) {
	long(t)
	type story struct {
		spoil func(t *testing.T, l *Lab)
		kind  fault.Kind
		text  string
	}
	cases := map[string]story{
		"two members of etcd":      {func(t *testing.T, l *Lab) { rename(t, l, map[string]string{"cp3": "cp2"}) }, fault.Refused, "etcd has two members named cp2"},
		"a member of another name": {func(t *testing.T, l *Lab) { rename(t, l, map[string]string{"cp2": "old"}) }, fault.Refused, "which is named old: when the machine joins again"},
		"another machine's member": {
			func(t *testing.T, l *Lab) { rename(t, l, map[string]string{"cp2": "cp3", "cp3": "cp2"}) }, fault.Refused, "but what runs on 127.42.7.13 is member",
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
	eachInLab(t, sim.Options{ControlPlanes: 3, Workers: 2}, cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		c.spoil(t, lab)
		from := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), policyFor("cp2"))
		requireFault(t, err, c.kind, c.text)
		require(t, len(fault.Hints(err)) != 0, "no hint: %v", err)
		requireNone(t, lab.touched(from, "cp2"), "cp2 was touched")
	})
}

// rename starts the etcd members of control planes under other names, all at once.
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

// editEtcd changes etcd's data on the system disk of a stopped control plane.
func (l *Lab) editEtcd(t *testing.T, node string, old, fresh string) {
	t.Helper()
	n := l.node(node)
	vm := valueOf(l.World.LookupVM(n.Host, n.VMID))(t)
	volid, _, _ := strings.Cut(vm.Config["scsi0"], ",")
	media := l.World.Media(volid, n.Host)
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

// impostor gives another machine a control plane's configuration, including its name.
func impostor(t *testing.T, l *Lab, name, machine string) {
	t.Helper()
	config := valueOf(l.Talos.MachineConfig(talosapi.Machine{Hostname: name, ControlPlane: true, Installer: "ghcr.io/siderolabs/installer:" + sim.TalosVersion, InstallSerial: "sys-" + machine}))(t)
	l.apply(machine, config)
}

// TestRemovedMember: a person removes a control plane's member while it keeps its data (facts: "the member has been
// permanently removed from the cluster"). doctor reports it. If the data is on the system disk, a roll repairs it; else
// the roll is refused before it touches anything, and the remedy works.
func TestRemovedMember(t *testing.T) {
	options := func(onData bool) sim.Options { return sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: onData} }
	eachLongIn(t, options, map[string]bool{"on the system disk": false, "on a disk of its own": true}, func(t *testing.T, lab *Lab, onData bool) {
		lab.Patch(everywhere)
		removed := lab.memberIDs()["cp2"]
		lab.removeMember(removed)
		time.Sleep(time.Minute)

		res := diagnosis(t, lab.Client())
		const says = "Talos: etcd: cp2 is no member of etcd (cp1, cp3 are), but has data of one: it was removed, and its etcd restarts for ever"
		if !slices.ContainsFunc(problems(res), func(p string) bool { return strings.HasPrefix(p, says) }) || res.Err() == nil {
			t.Errorf("doctor says\n%s", strings.Join(problems(res), "\n"))
		}
		plan := lab.planOf(lab.Client(), "cp2", policyFor("cp2"))
		require(t, slices.ContainsFunc(plan.Drift.Notes, func(n string) bool {
			return strings.Contains(n, "its machine is not well: ") && strings.Contains(n, "etcd")
		}), "the plan's notes: %q", plan.Drift.Notes)

		from := len(lab.Recorder.Calls())
		if _, err := lab.Client().Roll(t.Context(), policyFor("cp2")); onData {
			requireRefused(t, err, "cp2 is no member of etcd (cp1, cp3 are), and with the data that it has it can never join again")
			lab.requireLeftAlone(from, "cp2")
			lab.reset("cp2", "EPHEMERAL") // as the hint says
			lab.mustRoll(secondRun, policyFor("cp2"))
		} else if err != nil {
			t.Fatal(err)
		}
		requireMembers(t, lab, "", false)
		require(t, lab.memberIDs()["cp2"] != removed, "cp2 is the removed member")
		if err := diagnosis(t, lab.Client()).Err(); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		requireDrift(t, lab, "cp1", "cp3", "wk1")
		if !onData { // else it was wiped on purpose
			lab.RequireIntact()
		}
	})
}

// removeMember removes a member from etcd as a person does, through cp1.
func (l *Lab) removeMember(id string) {
	l.t.Helper()
	l.talosctl("cp1", func(ctx context.Context, c *client.Client) error {
		return c.EtcdRemoveMemberByID(ctx, &machineapi.EtcdRemoveMemberByIDRequest{MemberId: parseMember(id)})
	})
}

// reset is ResetNode and a wait for it.
func (l *Lab) reset(node string, labels ...string) {
	l.t.Helper()
	must(l.t, l.ResetNode(l.t.Context(), node, labels...))
	time.Sleep(2 * time.Minute)
}

// TestDoctorOfTwoEtcds: if a control plane has formed its own etcd, doctor's result must
// not depend on who is asked first, and must not advise to wipe anything.
func TestDoctorOfTwoEtcds(t *testing.T) {
	inLongLab(t, threePlanes, func(t *testing.T, lab *Lab) {
		splitBrain(lab)
		time.Sleep(time.Minute)
		var said []string
		for _, c := range diagnosis(t, lab.Client()).Checks {
			if c.What == "etcd" {
				said = append(said, c.Seen+": "+strings.Join(c.Remedy, "; "))
			}
		}
		all := strings.Join(said, "\n")
		if !strings.Contains(all, "cp3 is no member of etcd (cp1, cp2 are), but runs etcd member ") || !strings.Contains(all, "there are two etcds") || strings.Contains(all, "talosctl reset") {
			t.Errorf("doctor says\n%s", all)
		}
	})
}

// TestAFileWithoutEtcdsVolume drops the document of the volume ETCD, so that Talos uses an empty directory on EPHEMERAL: nothing
// lifts that for a node that keeps its system disk. With a new one, and acceptLoss, the member leaves etcd first and joins
// it again without data; the volume stays, empty.
func TestAFileWithoutEtcdsVolume(t *testing.T) {
	inDamagedLab(t, sim.Options{ControlPlanes: 3, Workers: sim.None, EtcdOnData: true, EtcdVolume: true, TalosVersion: talos14}, func(t *testing.T, lab *Lab) {
		only := policyFor("cp2")
		own := lab.configOf("cp2")
		docs := strings.Split(string(own), "---\n")
		kept := slices.DeleteFunc(slices.Clone(docs), func(d string) bool { return strings.Contains(d, "kind: VolumeConfig\nname: ETCD\n") })
		mustBe(t, len(kept) == len(docs)-1, "%d of %d documents are left", len(kept), len(docs))
		files := configFiles{"cp2": cluster.Secret(strings.Join(kept, "---\n"))}
		member := func() string {
			for _, m := range lab.EtcdMembers() {
				if m.Name == "cp2" {
					return m.ID
				}
			}
			return ""
		}
		before, was := lab.machine("cp2"), member()
		const lacks = "its file in talos.machineConfigs lacks VolumeConfig ETCD, or its provisioning, whose volume is on the disk sdb"
		refuse := func(strategy cluster.Strategy, lifted bool) {
			t.Helper()
			user := files.user(lab, firstRun)
			n := lab.planOf(user, "cp2", only)
			refused := strings.Join(n.Refused, "\n")
			if n.Strategy != strategy || !strings.Contains(refused, lacks) || strings.Contains(refused, "or name ETCD in nodes[].acceptLoss") != lifted {
				t.Errorf("%s: planned as %s, refused %q", strategy, n.Strategy, n.Refused)
			}
			requireRefused(t, user.roll(only)(t.Context()), lacks)
			now := lab.machine("cp2")
			require(t, now.BootID == before.BootID && member() == was, "%s: cp2 was touched", strategy)
		}
		accept := func() { lab.Replace("recast.yaml", "{name: cp2,", "{name: cp2, acceptLoss: [ETCD],") }

		refuse(cluster.ApplyConfig, false)
		lab.Patch(everywhere)
		refuse(cluster.Recreate, true)
		accept()
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
		if got := lab.EtcdViolations(); len(got) > 0 {
			t.Error(got)
		}
	})
}
