package simtest

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

func boundVolume() edit { return volume("pvc-1", local("/var/local-path/pvc-1")) }

const (
	pvLost    = "PersistentVolume pvc-1 (claim default/db-0) on the system disk will be lost"
	pvRefused = "PersistentVolume pvc-1 (claim default/db-0) is on the system disk and would be lost: move it to a disk of its own, or name pv/pvc-1 in nodes[].acceptLoss"
)

// door is a way in which a system disk with data leaves its node.
type door struct {
	at    moment           // of the roll, at which it is killed; none: it finishes
	off   bool             // then it is continued on another machine, with the node powered off
	early bool             // the volume exists before the roll, which accepts its loss, and not afterwards
	leave leaveFunc        // the way in which the disk would leave
	plan  cluster.Strategy // strategy of the plan that lets it leave; "": no plan
}

type leaveFunc func(context.Context, *Client) (pipeline.Report, error)

func byRecover(ctx context.Context, c *Client) (pipeline.Report, error) { return c.Recover(ctx, "wk1") }

func byRollback(ctx context.Context, c *Client) (pipeline.Report, error) {
	return c.Rollback(ctx, onlyWorker)
}

func byRoll(ctx context.Context, c *Client) (pipeline.Report, error) { return c.Roll(ctx, onlyWorker) }

// However a system disk leaves a node, its volumes are refused with the remedy, and listed once acceptLoss names them.
func TestNoDiskIsLostWithoutConsent(t *testing.T) {
	eachLong(t, oneWorker(), map[string]door{
		"rollback":                       {leave: byRollback, plan: cluster.Rollback},
		"recover of a node that serves":  {at: before("finish/keep"), leave: byRecover, plan: cluster.PutBack},
		"put-back of a roll, node off":   {at: before("finish/keep"), off: true, leave: byRoll, plan: cluster.PutBack},
		"resume before the disk is away": {at: after("take-down/stop"), leave: byRoll, plan: cluster.Recreate},
		"recover of one that never ran":  {at: before("bring-up/start"), early: true, leave: byRecover},
		"recover of one that is blank":   {at: before("bring-up/configure"), early: true, leave: byRecover},
		"recover with the old disk":      {at: after("take-down/drain"), leave: byRecover},
	}, func(t *testing.T, lab *Lab, d door) {
		lab.Patch(everywhere)
		if d.early {
			boundVolume()(lab)
			acceptLoss("pv/pvc-1")(lab)
		}
		first := lab.as(firstRun)
		if d.at == (moment{}) {
			must(t, first.roll(onlyWorker)(t.Context()))
		} else {
			first.killedAt(t, d.at, first.roll(onlyWorker))
		}
		if d.off {
			lab.loseJournal()
			must(t, lab.World.PowerOff(wk1))
		}
		if d.early {
			configuration(" acceptLoss: ['pv/pvc-1'],", "")(lab)
		} else {
			boundVolume()(lab)
		}
		before := lab.machinesDump()
		rep, err := d.leave(t.Context(), lab.as(secondRun))
		if d.plan == "" {
			require(t, err == nil && len(rep.Plan.Nodes[0].WillLose) == 0, "it asks for what is not on that disk: %v", err)
			return
		}
		requireRefused(t, err, pvRefused)
		n, _ := cluster.Find(rep.Plan.Nodes, func(n planning.NodePlan) bool { return n.Node == "wk1" })
		unread := strings.Contains(strings.Join(n.Refused, "\n"), "unread/"+firstRun)
		require(t, n.Strategy == d.plan && unread == d.off, "as %s, unread %t: %q", n.Strategy, unread, n.Refused)
		requireSame(t, before, lab.machinesDump(), "something was changed:\n… (-want +got)")
		accept := []string{"pv/pvc-1"}
		if d.off {
			accept = append(accept, "unread/"+firstRun)
		}
		acceptLoss(accept...)(lab)
		var shown []string
		c := lab.as(thirdRun).confirms(func(p planning.Plan) {
			if n := p.Nodes[0]; shown == nil && n.Strategy == d.plan {
				shown = n.WillLose
			}
		})
		must(t, errOf(d.leave(t.Context(), c)))
		require(t, slices.Contains(shown, pvLost), "shown as lost: %q", shown)
	})
}

// A volume that is bound between the plan and the exchange is detected, and then nothing is changed.
func TestBoundMeanwhile(t *testing.T) {
	long(t)
	type story struct {
		earlier func(*testing.T, *Client) // an earlier roll; nil: none
		leave   leaveFunc
		at      moment // at which it is bound; none: at the confirmation
		off     bool   // the VM is off by then
	}
	finished := func(t *testing.T, c *Client) { must(t, c.roll(onlyWorker)(t.Context())) }
	serving := func(t *testing.T, c *Client) { c.killedAt(t, before("finish/keep"), c.roll(onlyWorker)) }
	drain, off := before("take-down/drain"), after("take-down/stop")
	eachInLab(t, oneWorker(), map[string]story{
		"recreate, at the gate":        {leave: byRoll},
		"recreate, in the drain":       {leave: byRoll, at: drain},
		"recreate, once it is off":     {leave: byRoll, at: off, off: true},
		"rollback, at the gate":        {earlier: finished, leave: byRollback},
		"rollback, in the drain":       {earlier: finished, leave: byRollback, at: drain},
		"rollback, once it is off":     {earlier: finished, leave: byRollback, at: off, off: true},
		"recover, at the gate":         {earlier: serving, leave: byRecover},
		"recover, once the new is off": {earlier: serving, leave: byRecover, at: after("put-back/stop"), off: true},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.Patch(everywhere)
		if s.earlier != nil {
			s.earlier(t, lab.as(firstRun))
		}
		before := lab.machinesDump()
		second := lab.as(secondRun)
		bind := sync.OnceFunc(func() { boundVolume()(lab) })
		second.confirms(func(planning.Plan) {
			if s.at == (moment{}) {
				bind()
			}
		})
		second.Emit = func(e step.Event) {
			if s.at.is(e) {
				bind()
			}
		}
		requireRefused(t, errOf(s.leave(t.Context(), second)), pvRefused)
		lab.RequireIntact()
		if s.off {
			requireSays(t, lab.systemDisks(), "scsi0 of VM 9031 ")
		} else {
			requireSame(t, before, lab.machinesDump(), "it is not as it was (-before +after)")
		}
		// The volume is not needed after all: the same command continues.
		without(store.Volumes(), "", "pvc-1")(lab)
		err := errOf(s.leave(t.Context(), lab.as(thirdRun)))
		require(t, err == nil || strings.Contains(err.Error(), "is not finished"), "the same command again: %v", err)
	})
}

// systemDisks are the drives of wk1's VM and of parking VMs, as a plan names them.
func (l *Lab) systemDisks() string {
	var out []string
	for _, vm := range l.World.VMs() {
		kind := "VM"
		if strings.Contains(vm.Config["name"], "parking") {
			kind = "parking VM"
		}
		for key, value := range vm.Config {
			if cluster.IsDiskKey(key) && (vm.ID == wk1 || kind != "VM") {
				volid, _, _ := strings.Cut(value, ",")
				out = append(out, fmt.Sprintf("%s of %s %d %s", key, kind, vm.ID, volid))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// No rollback boots the disk of a cancelled replacement; recast prune frees it, and so does the node's next roll.
func TestGivenUpDiskIsKept(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func(t *testing.T, lab *Lab){
		"prune": func(t *testing.T, lab *Lab) {
			rep := valueOf(lab.Client().pruneDisks(t.Context(), 1, nil))(t)
			require(t, len(rep.Disks) == 1 && rep.Disks[0].GivenUp && rep.Disks[0].Removed, "pruned %+v", rep.Disks)
		},
		"the next roll": func(t *testing.T, lab *Lab) {
			p := lab.planOf(lab.Client(), "wk1", planning.Policy{})
			require(t, len(p.Frees) == 1 && p.Frees[0].GivenUp && strings.Contains(p.Frees[0].String(), "run "+firstRun+" made before it was cancelled"),
				"frees %+v", p.Frees)
			must(t, lab.as(thirdRun).roll(onlyWorker)(t.Context()))
			lab.requireKept(1)
		},
	}, func(t *testing.T, lab *Lab, next func(t *testing.T, lab *Lab)) {
		lab.Patch(everywhere)
		lab.as(firstRun).rollKilled(before("finish/keep"), onlyWorker)
		media := lab.media(volidOf(lab, wk1, "scsi0"))
		must(t, lab.as(secondRun).giveUp("wk1")(t.Context()))
		res := lab.status()
		mustBe(t, len(res.Kept) == 1 && res.Kept[0].GivenUp && res.Kept[0].Run == firstRun, "kept %+v", res.Kept)
		require(t, lab.media(res.Kept[0].Volid) == media, "another disk is kept")
		requireRefused(t, lab.as(secondRun).goBack("wk1")(t.Context()), "no earlier system disk of it is parked")
		next(t, lab)
		res = lab.status()
		require(t, !slices.ContainsFunc(res.Kept, func(k pipeline.Kept) bool { return k.GivenUp }), "kept %+v", res.Kept)
	})
}

// For an unfinished replacement the plan has each disk's present name and place, not the earlier ones.
func TestPlanNamesDisksAsTheyAreNow(t *testing.T) {
	inAMove := onServer("/qemu/9031/move_disk POST")
	eachLong(t, oneWorker(), map[string]moment{
		"on the parking VM":       after("delete-vm"),
		"some on either":          after("park/scsi0"),
		"given back":              before("bring-up/configure"),
		"a name without a volume": inAMove,
	}, func(t *testing.T, lab *Lab, at moment) {
		lab.Patch(everywhere)
		first, want := lab.as(firstRun), 0
		if at == inAMove {
			want = 1
			must(t, first.roll(onlyWorker)(t.Context())) // it has tried the storage with a scratch volume
			lab.Patch(sim.CommonExtension)
			first = lab.as(secondRun)
			lab.World.StopNextMove(world.AfterRename, false)
		}
		first.killedAt(t, at, first.roll(onlyWorker))
		n := lab.planOf(lab.Client(), "wk1", planning.Policy{})
		unnamed := 0
		for _, d := range append(n.Carried, *n.System) {
			switch {
			case d.Volid == "" && strings.Contains(d.Where, "without a name, on the way from"):
				unnamed++
			case !strings.Contains(lab.systemDisks(), d.Where+" "+d.Volid):
				t.Errorf("%s is said to be %s, %s; there is\n%s", d.Key, d.Volid, d.Where, lab.systemDisks())
			}
		}
		require(t, unnamed == want, "%d disks without a name: %+v", unnamed, n)
	})
}

var (
	linstorSatellites = resource("piraeus.io/v1", "linstorsatellites", "LinstorSatellite", false)
	linstorClusters   = resource("piraeus.io/v1", "linstorclusters", "LinstorCluster", false)
)

func (l *Lab) installPiraeus() {
	l.Kube.Define(linstorSatellites)
	l.Kube.Define(linstorClusters)
}

func daemons(namespace, name, at string) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.put(store.DaemonSets(), daemonSet(namespace, name, writesTo(name, at)))
		time.Sleep(20 * time.Second)
	}
}

func writesTo(name, at string) corev1.PodSpec {
	return corev1.PodSpec{
		Containers: []corev1.Container{{Name: name, Image: "registry.k8s.io/pause", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		Volumes:    []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: at}}}},
	}
}

func noDaemons(namespace, name string) edit {
	return func(l *Lab) {
		without(store.DaemonSets(), namespace, name)(l)
		time.Sleep(time.Minute)
	}
}

func pool(kind string, spec map[string]any) edit {
	return func(l *Lab) {
		l.t.Helper()
		l.put(linstorSatellites.GroupVersionResource, object(linstorSatellites, "", "wk1", map[string]any{
			"spec": map[string]any{"storagePools": []any{map[string]any{"name": "pool", kind: spec}}},
		}))
	}
}

func physicalVolume(label, group string) artefact.Partition {
	return artefact.Partition{
		Label: label, UUID: "0b5f0000-0000-4000-8000-0000000000" + label[len(label)-2:],
		Filesystem: "lvm2-pv", FilesystemUUID: "aaaaaa-bbbb-cccc-dddd-eeee-ffff-0000" + label[len(label)-2:], VolumeGroup: group,
	}
}

// twoGroups puts LINSTOR's volume group on the data disk, and another one on the system disk.
func twoGroups(l *Lab) {
	l.t.Helper()
	pool("lvmPool", map[string]any{"volumeGroup": "vg0"})(l)
	whileOff(partitioned(wk1System, physicalVolume("r-lvm11", "vg1")), partitioned(wk1Data, physicalVolume("r-lvm22", "vg0")))(l)
}

func all(edits ...edit) edit {
	return func(l *Lab) {
		for _, e := range edits {
			e(l)
		}
	}
}

// localRefusals are data of pods, LINSTOR and LVM that exist only on the system disk.
func localRefusals() []refusal {
	only := func(what, name string) string {
		return what + " is on the system disk and would be lost: move it to a disk of its own, or name " + name + " in nodes[].acceptLoss"
	}
	topolvm := volume("pvc-1", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "topolvm.io", VolumeHandle: "h"}})
	noVolume, noPool := without(store.Volumes(), "", "pvc-1"), without(linstorSatellites.GroupVersionResource, "", "wk1")
	const vg0 = "LINSTOR storage pool pool (vg0)"
	return []refusal{
		loss("hostpath/var/lib/agent", "hostPath /var/lib/agent (DaemonSet default/agent)", daemons("default", "agent", "/var/lib/agent"), noDaemons("default", "agent")),
		{name: "what a DaemonSet makes anew", bring: daemons("default", "vector", "/var/lib/vector"), undo: noDaemons("default", "vector")},
		{name: "hostPath on another disk", bring: daemons("default", "agent", "/var/mnt/data/agent"), undo: noDaemons("default", "agent")},
		loss("linstor/var/lib/linstor-pools/pool", "LINSTOR storage pool pool (/var/lib/linstor-pools/pool)", pool("fileThinPool", map[string]any{}), noPool),
		{name: "LINSTOR's files on another disk", bring: pool("filePool", map[string]any{"directory": "/var/mnt/data/linstor"}), undo: noPool},
		loss("pv/pvc-1", "PersistentVolume pvc-1 (claim default/db-0)", topolvm, noVolume),
		{
			name: "TopoLVM on another disk", bring: all(topolvm, whileOff(partitioned(wk1Data, physicalVolume("r-lvm22", "vg0")))),
			undo: all(noVolume, whileOff(unpartitioned(wk1Data, 1))),
		},
		{
			name: "TopoLVM on the system disk", bring: all(topolvm, whileOff(partitioned(wk1System, physicalVolume("r-lvm11", "vg1")))),
			both: []string{only("volume r-lvm11", "r-lvm11"), pvRefused}, lift: acceptLoss("r-lvm11", "pv/pvc-1"),
			lost: []string{"volume r-lvm11 on the system disk will be lost", pvLost},
			undo: all(noVolume, whileOff(unpartitioned(wk1System, 1))),
		},
		{
			name: "two volume groups, and Talos before 1.14 does not tell them apart", bring: twoGroups,
			both: []string{only("volume r-lvm11", "r-lvm11"), only(vg0, "linstor/pool")}, lift: acceptLoss("r-lvm11", "linstor/pool"),
			lost: []string{"volume r-lvm11 on the system disk will be lost", vg0 + " on the system disk will be lost"},
			undo: all(noPool, whileOff(unpartitioned(wk1System, 1), unpartitioned(wk1Data, 1))),
		},
	}
}

// Since 1.14 Talos reports the volume groups, so that only the one on the system disk counts as lost.
func TestVolumeGroupsAreToldApart(t *testing.T) {
	o := oneWorker()
	o.TalosVersion = talos14
	inDamagedLab(t, o, func(t *testing.T, lab *Lab) {
		lab.installPiraeus()
		lab.Patch(sim.PatchedExtension)
		twoGroups(lab)
		strategy(cluster.Recreate)(lab)
		n := planOf(t, lab, "wk1")
		want := []string{"volume r-lvm11 is on the system disk and would be lost: move it to a disk of its own, or name r-lvm11 in nodes[].acceptLoss"}
		requireSame(t, want, n.Refused, "refused (-want +got)")
	})
}

// window is an unfinished hand-over: the worker ends between two actions, or neither configuration can be written.
type window struct {
	move     int // which of the roll's hand-overs
	stop     world.MoveStage
	crash    bool // the host crashes too
	noQuorum bool // that is why
	journal  bool
	fresh    string // where a volume appears meanwhile; "": nowhere
}

// The hand-overs of wk1: EFI variables, system disk and data disk are parked, the first and the last are returned.
const (
	parksSystem  = 2
	parksData    = 3
	attachesData = 5
)

// beforeMove calls f before the n-th move_disk of one of wk1's disks: scratch VMs hand volumes over, too.
func (l *Lab) beforeMove(n int, f func()) {
	l.beforeNth(n, func(call record.Call) bool {
		return toVM("POST", "/move_disk")(call) &&
			(strings.Contains(call.Path, "/9031/") || call.Params["target-vmid"] == "9031")
	}, f)
}

// beforeNth calls f before a server acts on the n-th call of a kind.
func (l *Lab) beforeNth(n int, is func(record.Call) bool, f func()) {
	var mu sync.Mutex
	seen := 0
	l.Recorder.Hooks(func(call record.Call) error {
		mu.Lock()
		defer mu.Unlock()
		if is(call) {
			if seen++; seen == n {
				f()
			}
		}
		return nil
	}, nil)
}

func (w window) interrupt(t *testing.T, lab *Lab) error {
	t.Helper()
	lab.beforeMove(w.move, func() {
		if w.noQuorum {
			lab.World.SetQuorum(false)
			return
		}
		lab.World.StopNextMove(w.stop, w.crash)
	})
	defer lab.Recorder.Hooks(nil, nil)
	c := lab.Client()
	err := c.roll(onlyWorker)(t.Context())
	mustBe(t, err != nil, "the roll succeeded")
	c.Kill()
	lab.World.SetQuorum(true)
	lab.World.BootHost("pve1")
	return err
}

// waitReady waits until the control plane is back after its host was down.
func (l *Lab) waitReady(t *testing.T) {
	t.Helper()
	for !isReady(l.kubeNode("cp1")) || errOf(l.Client().Plan(t.Context(), planning.Policy{})) != nil {
		time.Sleep(10 * time.Second)
	}
}

// stray makes a volume with a VM's number that no configuration names.
func (l *Lab) stray(t *testing.T, vmid int) string {
	t.Helper()
	return valueOf(l.World.Alloc(sim.DiskStorage, "pve1", vmid, 1<<30, world.NewMedia(nil)))(t)
}

// TestCutOffHandOver: a volume that lost its name in a hand-over is found and named again,
// and the roll completes normally. TestMatrix does this in every hand-over of an exchange.
func TestCutOffHandOver(t *testing.T) {
	long(t)
	t.Parallel()
	ref := resumption{strategy: cluster.Recreate, node: "wk1"}.undisturbed(t)
	options := func(window) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1, Talos: ref.secrets} }
	eachIn(t, options, map[string]window{
		"park the system disk, after the rename":                   {move: parksSystem, stop: world.AfterRename, journal: true},
		"park the data disk, after the rename, the host crashes":   {move: parksData, stop: world.AfterRename, crash: true},
		"park the data disk, after the source":                     {move: parksData, stop: world.AfterSource, journal: true},
		"attach the data disk, after the rename":                   {move: attachesData, stop: world.AfterRename},
		"attach the data disk, after the source, the host crashes": {move: attachesData, stop: world.AfterSource, crash: true, journal: true},
		"park the data disk, no quorum":                            {move: parksData, noQuorum: true, journal: true},
		"attach the data disk, no quorum":                          {move: attachesData, noQuorum: true, journal: true},
	}, func(t *testing.T, lab *Lab, w window) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		requireError(t, w.interrupt(t, lab), "hand ")
		mustBe(t, len(lab.strays()) == 1, "without a name: %q", lab.strays())
		lab.waitReady(t)
		if !w.journal {
			lab.loseJournal()
		}
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.RequireIntact()
		requireSame(t, ref.dump, lab.settledDump(), "the world differs from an undisturbed one")
		lab.requireKept(1)
	})
}

// Older unnamed volumes are distinguished; one that appeared meanwhile is not, and a person must decide.
func TestHandOverWithStrays(t *testing.T) {
	eachLong(t, oneWorker(), map[string]window{
		"none, but some from long ago": {move: parksData, stop: world.AfterRename},
		"at the target":                {move: parksData, stop: world.AfterSource, journal: true, fresh: "target"},
		"at the source":                {move: parksData, stop: world.AfterSource, fresh: "source"},
		"beside a dangling name":       {move: parksData, stop: world.AfterRename, fresh: "source"},
		"under the old name":           {move: parksData, stop: world.AfterRename, journal: true, fresh: "old name"},
		"at the target, on attaching":  {move: attachesData, stop: world.AfterRename, fresh: "target"},
		"at the source, on attaching":  {move: attachesData, stop: world.AfterSource, journal: true, fresh: "source"},
	}, func(t *testing.T, lab *Lab, c window) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		old := []string{lab.stray(t, 9031), lab.stray(t, 9031)}
		requireError(t, c.interrupt(t, lab), "hand ")
		lab.waitReady(t)
		if !c.journal {
			lab.loseJournal()
		}
		park := lab.parkingID(t)
		from, to := 9031, park
		if c.move == attachesData {
			from, to = park, 9031
		}
		unnamed := slices.DeleteFunc(lab.strays(), func(volid string) bool { return slices.Contains(old, volid) })
		mustBe(t, len(unnamed) == 1, "without a name: %q", unnamed)
		lost := unnamed[0]
		strays := len(old)
		switch c.fresh {
		case "source", "target":
			vmid := map[string]int{"source": from, "target": to}[c.fresh]
			requireUndecided(t, lab, to, lost, lab.stray(t, vmid))
			lab.EditVM(to, "scsi1", lost+",serial=data-wk1") // as the hint says
			strays++
		case "old name":
			volid := volidOf(lab, from, "scsi1")
			for lab.stray(t, from) != volid {
				strays++ // lower numbers are free too
			}
			requireUndecided(t, lab, to, lost, volid)
			lab.EditVM(to, "scsi1", lost+",serial=data-wk1")
			// The volume with the old name is under the disk's key on the VM to delete: a person frees it.
			hostsRefused(t, lab.Client().roll(onlyWorker), " has scsi1 ("+volid+",", "only one of them is the disk")
			all(remove("scsi1"), remove("unused0"))(lab)
		}
		lab.Client().rollTo(t, onlyWorker, "cp1")
		requireCount(t, strays, lab.strays(), "strays, of which none is recast's to free")
	})
}

// requireUndecided: the roll names both volumes, says what to do, and changes nothing.
func requireUndecided(t *testing.T, lab *Lab, to int, lost, fresh string) {
	t.Helper()
	before := lab.machinesDump()
	hint := fmt.Sprintf("attach it as scsi1 of VM %d yourself", to)
	hostsRefused(t, lab.Client().roll(onlyWorker), " volumes could be it: ", lost, fresh, hint)
	requireSame(t, before, lab.machinesDump(), "it changed something")
}

func (l *Lab) parkingID(t *testing.T) int {
	t.Helper()
	res := l.status()
	mustBe(t, len(res.Open) == 1, "status %+v", res)
	return int(res.Open[0].Parking)
}

// A roll without space for the new system disks does not begin: the old ones stay parked until prune frees them.
func TestARollNeedsRoomForTheNewDisks(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.Preallocate(sim.DiskStorage)
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.Patch(sim.PatchedExtension)
		disks, _ := cluster.Find(lab.World.Storages("pve1"), func(s world.StorageStatus) bool { return s.ID == sim.DiskStorage })
		lab.World.SetCapacity(disks.ID, disks.Used+9<<30)
		before := len(lab.Recorder.Calls())
		const want = "storage fast on pve1 has 9216 MiB free, but a new system disk takes 10 GiB there while the old one stays parked"
		requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), "wk1: "+want)
		lab.requireNothingSent(before)
		requireSays(t, strings.Join(problems(diagnosis(t, lab.Client())), ""), "room for system disks on fast of pve1: "+want)
		must(t, errOf(lab.Client().pruneDisks(t.Context(), 0, nil)))
		must(t, lab.as("20000102-0000-feed").roll(onlyWorker)(t.Context()))
	})
}

// A rename that fails on a busy storage is retried, each time after a check whether it has happened.
func TestHandOverOnABusyStorage(t *testing.T) {
	type story struct {
		storage     string
		strategy    cluster.Strategy
		step        string // which waits
		move, times int
		fault       world.RenameFault
	}
	options := func(s story) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 1, DiskType: s.storage} }
	eachLongIn(t, options, map[string]story{
		"zfs, while parking":                {"zfspool", cluster.Recreate, "take-down/park/scsi1", parksData, 5, world.RenameBusy},
		"zfs, too slow":                     {"zfspool", cluster.Recreate, "take-down/park/scsi0", parksSystem, 1, world.RenameTimeout},
		"zfs, too slow, but it was renamed": {"zfspool", cluster.Recreate, "take-down/park/scsi1", parksData, 1, world.RenameTimeoutDone},
		"ceph, while giving back":           {"rbd", cluster.Recreate, "bring-up/attach/scsi1", attachesData, 3, world.RenameBusy},
		"files, reimage":                    {"dir", cluster.Reimage, "take-down/park/scsi0", 1, 4, world.RenameBusy},
	}, func(t *testing.T, lab *Lab, s story) {
		resumption{strategy: s.strategy}.prepare(lab)
		lab.beforeMove(s.move, func() { lab.World.BusyStorage(sim.DiskStorage, s.times, s.fault) })
		var said []string
		c := lab.Client().hears(notes(s.step, &said))
		must(t, c.roll(onlyWorker)(t.Context()))
		requireSays(t, strings.Join(said, "\n"), "its storage is busy: tried again for 5m0s at most")
		requireInSync(t, lab, "cp1")
		lab.requireKept(1)
	})
}

// TestHandOverOnAStorageThatStaysBusy: it fails after some minutes with a hint, and the same command continues.
func TestHandOverOnAStorageThatStaysBusy(t *testing.T) {
	o := oneWorker()
	o.DiskType = "zfspool"
	inLongLab(t, o, func(t *testing.T, lab *Lab) {
		resumption{strategy: cluster.Recreate}.prepare(lab)
		var since time.Time
		lab.beforeMove(parksData, func() {
			since = time.Now()
			lab.World.BusyStorage(sim.DiskStorage, -1, world.RenameBusy)
		})
		err := lab.Client().roll(onlyWorker)(t.Context())
		mustBe(t, fault.CodeOf(err) == fault.StorageBusy && strings.Contains(err.Error(), "dataset is busy"),
			"err = %v, code %s", err, fault.CodeOf(err))
		requireSays(t, strings.Join(fault.Hints(err), "\n"), "lsof", "same command again")
		requireTook(t, since, 3*time.Minute, 7*time.Minute)
		lab.Recorder.Hooks(nil, nil)
		lab.World.NoMoreFailures()
		lab.Client().rollTo(t, onlyWorker, "cp1")
		lab.requireKept(1)
	})
}

// refusedCreate refuses the first scratch VM, when the roll looks whether its number is free.
func refusedCreate(l *Lab) {
	first := func(call record.Call) bool {
		return call.Method == "POST" && call.Params["vmid"] == strconv.Itoa(scratchVM)
	}
	l.beforeNth(1, first, func() { l.World.FailNext("qmcreate", "Permission check failed (/mapping/cpu/x, Mapping.Use)") })
}

// What Proxmox would refuse once the node's VM is deleted, it refuses to scratch VMs before the drain.
func TestProvedBeforeTheDelete(t *testing.T) {
	type story struct {
		strategy cluster.Strategy
		bring    func(*Lab)
		want     string
	}
	const stays = "storage fast on pve1 is to hand disks over from one VM to another, and a scratch volume on it did not go there and back"
	handsNothingOver := func(l *Lab) { l.World.FailNext("qmmove", "storage does not support renaming volumes") }
	eachLong(t, oneWorker(), map[string]story{
		"a create that is refused": {
			cluster.Recreate, refusedCreate, "Proxmox is to create the VM of wk1 again on pve1, and a scratch VM with its settings could not be made and deleted there",
		},
		"a storage that hands nothing over": {cluster.Recreate, handsNothingOver, stays},
		"such a storage, reimage":           {cluster.Reimage, handsNothingOver, stays},
	}, func(t *testing.T, lab *Lab, s story) {
		strategy(s.strategy)(lab)
		lab.Patch(everywhere)
		s.bring(lab)
		boot, before := lab.bootID("wk1"), len(lab.Recorder.Calls())
		err := lab.Client().roll(onlyWorker)(t.Context())
		lab.Recorder.Hooks(nil, nil)
		requireFault(t, err, fault.Refused, s.want, "no node was touched")
		requireSame(t, boot, lab.bootID("wk1"), "wk1 was restarted (-want +got)")
		lab.requireUntouched(before)
		lab.Client().rollTo(t, onlyWorker, "cp1")
		lab.requireNoScratch()
	})
}

func ofScratch(call record.Call) bool {
	id, _ := strconv.Atoi(call.Params["vmid"])
	return strings.Contains(call.Path, "/qemu/909") || id >= scratchVM-9 && id <= scratchVM
}

// A storage that has handed a volume over is not tried again, unless no journal knows; the create is, in each run.
func TestHandOverIsRemembered(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		create := []string{"POST qemu", "PUT config", "DELETE 9099"}
		roll := func(want []string) {
			t.Helper()
			lab.Patch(everywhere)
			before := len(lab.Recorder.Calls())
			must(t, lab.Client().roll(onlyWorker)(t.Context()))
			calls := lab.sent(before, func(c record.Call) bool { return c.Mutation && ofScratch(c) })
			got := cluster.Each(calls, func(c record.Call) string { return c.Method + " " + path.Base(c.Path) })
			requireSame(t, want, got, "sent about scratch VMs (-want +got)")
		}
		handOver := []string{"POST qemu", "POST qemu", "POST move_disk", "POST move_disk", "DELETE 9099", "DELETE 9098"}
		roll(slices.Concat(create, handOver))
		roll(create)
		lab.loseJournal()
		roll(slices.Concat(create, handOver))
	})
}

// proving is a roll of wk1 that has not been away yet.
type proving struct {
	*Lab
	boot string
}

// However a roll is killed at its proofs, prune recognises what is left, and the next roll finishes.
func TestProofsKilled(t *testing.T) {
	long(t)
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		t.Run(string(s), killGrid[proving]{
			begin: func(t *testing.T) proving {
				lab := New(t, oneWorker())
				strategy(s)(lab)
				lab.Patch(everywhere)
				return proving{lab, lab.bootID("wk1")}
			},
			do: rolls(onlyWorker),
			choose: func(t *testing.T, points []point) []point {
				begin, end := namedPoint(t, points, "journal written plan"), namedPoint(t, points, "journal written hands-over")
				return chosenPoints(t, points[begin.at-1:end.at+1])
			},
			goOn: func(t *testing.T, lab proving, at point) bool {
				require(t, lab.bootID("wk1") == lab.boot, "wk1 was restarted")
				if at.at%3 == 0 {
					rep, err := lab.second().pruneDisks(t.Context(), -1, nil)
					must(t, err)
					for _, v := range rep.Scratch {
						require(t, v.Removed, "not pruned: %+v", v)
					}
					lab.requireNoScratch()
				}
				must(t, lab.second().roll(onlyWorker)(t.Context()))
				return false
			},
			end: func(t *testing.T, lab proving) string {
				lab.requireNoScratch()
				lab.RequireIntact()
				requireDrift(t, lab.Lab, "cp1")
				return ""
			},
		}.killEverywhere)
	}
}

// A control plane of a broken cluster stays until Proxmox has shown that it creates the new VM, for this token.
func TestRebuildIsProved(t *testing.T) {
	long(t)
	type story struct {
		bring func(*Lab)
		want  string
	}
	eachInBubble(t, map[string]story{
		"a create that is refused": {refusedCreate, "Proxmox is to create the VM of cp1 again on pve1"},
		"a privilege that only the create needs": {func(l *Lab) {
			l.World.AddRole("Recast", slices.DeleteFunc(sim.Privileges(), func(p string) bool { return p == "VM.Config.CPU" })...)
		}, "the Proxmox token lacks privileges: VM.Config.CPU on /vms"},
	}, func(t *testing.T, c story) {
		b := breakCluster(t, 1)
		vm := b.namedVM("cp1")
		must(t, b.World.PowerOff(vm.ID))
		c.bring(b.Lab)
		_, err := b.as(secondRun).Rebuild(t.Context(), b.file)
		b.Recorder.Hooks(nil, nil)
		requireFault(t, err, fault.Refused, c.want)
		now := b.namedVM("cp1")
		require(t, now.ID == vm.ID && now.Config["scsi0"] == vm.Config["scsi0"], "cp1 is %+v, was %+v", now, vm)
		b.World.AddRole("Recast", sim.Privileges()...)
		must(t, errOf(b.as(thirdRun).Rebuild(t.Context(), b.file)))
		b.require(t)
	})
}
