package simtest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/drain"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/adminconfig"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline/configs"
	"github.com/recast-sh/recast/schematics"
)

func toVM(method, suffix string) func(record.Call) bool {
	return func(c record.Call) bool {
		path, _, _ := strings.Cut(c.Path, "?")
		return c.Proto == "proxmox" && c.Method == method && strings.HasSuffix(path, suffix)
	}
}

// kubernetesAnswers is nil if the API of Kubernetes can be read now.
func (l *Lab) kubernetesAnswers() error {
	ctx := l.t.Context()
	return errOf(connected(ctx, l.Client(), func(s *session) (any, error) { return s.machines.Kube.Nodes(ctx) }))
}

// TestControlPlanesByCount rolls clusters of one, two and five control planes, and some whose Nodes have a domain, which
// their members of etcd have not.
func TestControlPlanesByCount(t *testing.T) {
	const alone = "it is the only control plane: the Kubernetes API is down meanwhile"
	type story struct {
		planes   int
		domain   string
		onData   bool
		strategy cluster.Strategy
		kept     bool // the members are the same afterwards
		outage   bool // etcd has no quorum meanwhile
		note     string
	}
	eachLongIn(t, func(c story) sim.Options {
		return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: c.onData, Domain: c.domain}
	}, map[string]story{
		"one, its data kept": {planes: 1, onData: true, strategy: cluster.Recreate, kept: true, outage: true, note: alone},
		"one":                {planes: 1, strategy: cluster.InPlace, kept: true, outage: true, note: alone},
		"two, their data kept": {
			planes: 2, onData: true, strategy: cluster.Recreate, kept: true, outage: true,
			note: "etcd has two members: it has no quorum and the Kubernetes API is down meanwhile",
		},
		"two":  {planes: 2, strategy: cluster.Recreate, note: "etcd has two members"},
		"five": {planes: 5, strategy: cluster.Recreate},

		"two with a domain":                    {planes: 2, domain: ".example.org", strategy: cluster.Recreate, note: "etcd has two members"},
		"three with a domain":                  {planes: 3, domain: ".example.org", strategy: cluster.Recreate},
		"three with a domain, their data kept": {planes: 3, domain: ".example.org", onData: true, strategy: cluster.Recreate, kept: true},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		before := lab.memberIDs()
		names := cluster.Each(lab.Nodes[:min(c.planes, 2)], func(n sim.Node) string { return n.Name }) // a sample
		rep := lab.Client().mustRoll(planning.Policy{Only: names, AcceptOutage: c.planes == 2})
		for _, n := range rep.Plan.Nodes {
			require(t, n.Strategy == c.strategy && strings.Contains(strings.Join(n.Notes, "; "), c.note), "%+v", n)
		}
		after := lab.memberIDs()
		require(t, maps.Equal(before, after) == c.kept && len(after) == c.planes, "members of etcd %v, were %v", after, before)
		requireSame(t, c.outage, len(lab.EtcdViolations()) > 0, "outages of etcd (-want +got)")
	})
}

// TestTheOnlyControlPlaneIsDown kills a roll while only Proxmox answers.
func TestTheOnlyControlPlaneIsDown(t *testing.T) {
	long(t)
	type story struct {
		planes int
		at     moment
	}
	stories := map[string]story{
		"shut down":  {1, onServer("/qemu/9001/status/shutdown POST")},
		"deleted":    {1, onServer("/qemu/9001 DELETE")},
		"parked":     {1, onServer("/qemu/9001/move_disk POST")},
		"one of two": {2, onServer("/qemu/9001 DELETE")},
		"started":    {1, onServer("/qemu/9001/status/start POST")},
	}
	for _, journal := range []bool{true, false} {
		t.Run(fmt.Sprintf("journal=%t", journal), func(t *testing.T) {
			eachIn(t, func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: true} }, stories, func(t *testing.T, lab *Lab, c story) {
				cp1 := planning.Policy{Only: []string{"cp1"}, AcceptOutage: c.planes == 2}
				lab.Patch(everywhere)
				members := lab.memberIDs()
				first := lab.Client()
				first.killedAt(t, c.at, first.roll(cp1))
				if !journal {
					lab.loseJournal()
				}
				if c.at != stories["shut down"].at { // the shutdown continues for a while
					require(t, lab.kubernetesAnswers() != nil, "the Kubernetes API answers")
				}
				rep := lab.Client().mustRoll(cp1)
				requireSame(t, []string{first.Run}, rep.Resumed, "resumed (-want +got)")
				if fresh := rep.Plan.Nodes[0]; len(rep.Plan.Nodes) != 1 || fresh.Node != "cp1" || fresh.Drift.Stale {
					requireNone(t, lab.plan(cp1).Work(), "cp1 is not done")
				}
				requireSame(t, members, lab.memberIDs(), "members of etcd (-before +after)")
			})
		})
	}
}

// TestTheOnlyControlPlaneHangs: the Kubernetes API is down too, and with it the mark on its Node.
func TestTheOnlyControlPlaneHangs(t *testing.T) {
	long(t)
	alone := sim.Options{ControlPlanes: 1, Workers: 1, EtcdOnData: true}
	eachFault(t, map[string]*talosFault{
		"reimage=false": {
			o: alone, rolls: "cp1", strategy: cluster.InPlace, first: published, begins: breakImage(talosapi.Hangs),
			mends: inTurn(withoutKubernetes, breakImage(talosapi.Sound), switchedOff, poweredOn, later),
			says:  []string{"cp1 did not come back from its upgrade", "and it can't be asked to roll back"}, stands: "on, cordoned",
		},
		"reimage=true": {
			o: alone, rolls: "cp1", strategy: cluster.InPlace, roll: []string{"bootFailure: reimage"}, first: published, begins: breakImage(talosapi.Hangs),
			remedy: (*talosScene).again, parks: true,
			says: []string{"cp1 did not come back from its upgrade", "it was reimaged and runs build "}, stands: untouched,
		},
	})
}

func withoutKubernetes(s *talosScene) {
	s.t.Helper()
	require(s.t, s.kubernetesAnswers() != nil, "the Kubernetes API answers")
}

// A control plane is off when the next run comes: its member is removed only if the others keep the quorum.
func TestAControlPlaneIsOffBeforeItLeaves(t *testing.T) {
	eachLongIn(t, func(planes int) sim.Options { return sim.Options{ControlPlanes: planes, Workers: 1} }, storiesOf(2, 3), func(t *testing.T, lab *Lab, planes int) {
		lab.Patch(everywhere)
		cp1 := planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}
		lab.Client().rollKilled(onServer("/nodes/cp1 PATCH"), cp1)
		must(t, lab.World.PowerOff(9001))
		if planes == 2 {
			err := lab.Client().roll(cp1)(t.Context())
			requireRefused(t, err, "cp1 is off before it could leave etcd, and the other members can't do without it")
			must(t, lab.World.PowerOn(9001))
			time.Sleep(2 * time.Minute)
		}
		lab.Client().mustRoll(cp1)
		requireRecord(t, lab, "cp1", true, planes == 2)
		requireSame(t, planes, len(lab.memberIDs()), "number of members of etcd (-want +got)")
	})
}

type etcdSeen struct {
	Fewest int                 // minimum number of voting members
	Out    int                 // maximum number of control planes down at once
	Asked  []string            // calls that change etcd: method and node
	Lost   map[string][]string // members missing right after a node's leave, by node
	Wrong  []string            // leaves at a wrong time
}

type etcdWatch struct {
	lab  *Lab
	mu   sync.Mutex
	seen etcdSeen
	ids  map[string]string // of the members at the beginning, by name
	last map[string]string // members before the latest call that changes etcd
}

// memberIDs are the voting members of etcd, by name.
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
	w.seen.Asked = append(w.seen.Asked, method+" "+node)
	if method == "LeaveCluster" {
		if len(w.last) != len(w.ids) {
			w.seen.Wrong = append(w.seen.Wrong, fmt.Sprintf("%s was made to leave while the voting members were %v", node, w.last))
		}
		if n := w.lab.node(node); !w.lab.runs(n) {
			w.seen.Wrong = append(w.seen.Wrong, node+" was made to leave when its VM was off")
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
			if node := w.lab.nameOf(c.Target); now[name] != w.last[name] {
				w.seen.Lost[node] = append(w.seen.Lost[node], name)
			}
		}
	}
	w.seen.Fewest = min(w.seen.Fewest, len(now))
	out := cluster.Where(w.lab.Nodes, func(n sim.Node) bool { return n.ControlPlane && !w.lab.runs(n) })
	w.seen.Out = max(w.seen.Out, len(out))
}

func (l *Lab) runs(n sim.Node) bool {
	return l.vmWith(func(vm world.VM) bool { return vm.ID == n.VMID }).Running
}

func (l *Lab) nameOf(addr string) string {
	n, _ := cluster.Find(l.Nodes, func(n sim.Node) bool { return n.Addr.String() == addr })
	return cmp.Or(n.Name, addr)
}

var controlPlanes = []string{"cp1", "cp2", "cp3"}

// TestPeersRoll rolls three control planes, however many may be down at a time.
//   - Upgrades of three control planes lost or removed members (talos #9153, #9789, #8759, #7423). The data of a
//     removed member is unusable for ever (facts: "the member has been permanently removed").
//   - The next member was removed before the previous one was back (cacppt #225, #150).
//   - Removing a member by name deleted the wrong node's data (talos #3340).
//   - A machine that joins etcd removes the member with its own name, whoever that is (talos PR #3715).
func TestPeersRoll(t *testing.T) {
	type story struct {
		strategy cluster.Strategy
		onData   bool
	}
	options := func(c story) sim.Options { return sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: c.onData} }
	stories := storiesOf(story{cluster.Recreate, false}, story{cluster.Recreate, true}, story{cluster.Reimage, true}, story{cluster.InPlace, false})
	eachLongIn(t, options, stories, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("strategy: "+string(c.strategy), "maxUnavailable: {workers: 3, perHost: 3}")
		lab.Patch(everywhere)
		w := &etcdWatch{lab: lab, ids: lab.memberIDs(), seen: etcdSeen{Fewest: 3, Lost: map[string][]string{}}}
		who := lab.identities()
		lab.Recorder.Hooks(w.before, w.after)
		lab.as(firstRun).mustRoll(policyFor(controlPlanes...))
		requireMembers(t, lab, "", false)
		lab.RequireIntact()

		inPlace := c.strategy == cluster.InPlace
		kept, after := c.onData || inPlace, lab.memberIDs()
		want := etcdSeen{Fewest: 3, Out: 1, Lost: map[string][]string{}}
		if inPlace {
			want.Out = 0
		}
		for _, name := range controlPlanes {
			if !kept {
				want.Fewest = 2
				want.Asked = append(want.Asked, "ForfeitLeadership "+name, "LeaveCluster "+name)
				want.Lost[name] = []string{name}
			}
			if !inPlace {
				requireRecord(t, lab, name, !kept, !kept)
			}
			require(t, (w.ids[name] == after[name]) == kept, "etcd member %s is %s", name, after[name])
		}
		requireSame(t, want, w.seen, "what happened to etcd (-want +got)")
		requireSame(t, who, lab.identities(), "UUID and address by name (-before +after)")
	})
}

func (l *Lab) identities() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	for _, n := range l.Nodes {
		k := l.kubeNode(n.Name)
		out[n.Name] = fmt.Sprint(k.Status.NodeInfo.SystemUUID, " ", k.Status.Addresses)
	}
	return out
}

func requireRecord(t *testing.T, lab *Lab, node string, etcdOn, left bool) {
	t.Helper()
	_, rec := lab.recordOf(node)
	require(t, len(rec.Kept) == 1 && rec.Kept[0].Left == left && rec.Kept[0].EtcdOn == etcdOn,
		"the record of %s: %+v", node, rec.Kept)
}

// TestPeers14TheOnlyOneIsNotWiped: upgrades wiped single control planes (talos #5794, #1768).
func TestPeers14TheOnlyOneIsNotWiped(t *testing.T) {
	eachLong(t, oneWorker(), newDisks, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.setRoll("strategy: " + string(s))
		lab.Patch(everywhere)
		ids := lab.memberIDs()
		const says = "cp1: the only etcd member's data would be lost with the system disk: use in-place, or put etcd's data on a persistent disk"
		lab.refuses(lab.Client().roll(planning.Policy{AcceptOutage: true}), says, "cp1", "wk1")
		requireSame(t, ids, lab.memberIDs(), "members of etcd (-before +after)")
	})
}

const (
	typeControlPlane = "type: controlplane"
	typeInit         = "type: init"
	beginsAlone      = "Talos begins a new, empty etcd"
)

// makeInit gives a control plane the type that an old talosctl gen config gave the first one. It keeps etcd's data.
func (l *Lab) makeInit(name string) {
	l.t.Helper()
	text := strings.Replace(string(l.configOf(name)), typeControlPlane, typeInit, 1)
	l.talosctl(name, func(ctx context.Context, c *client.Client) error {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: []byte(text), Mode: machineapi.ApplyConfigurationRequest_STAGED})
		return err
	})
	l.talosctl(name, func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
	time.Sleep(3 * time.Minute)
	mustBe(l.t, strings.Contains(string(l.configOf(name)), typeInit), "%s is not of that type", name)
}

func (l *Lab) requireOneEtcd(members ...string) {
	l.t.Helper()
	requireSame(l.t, members, l.memberNames(), "members of etcd (-want +got)")
	l.requireEtcd()
}

// No strategy takes etcd's data from a control plane of type init, which would begin a second etcd without them.
func TestTypeInit(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: sim.None}, func(t *testing.T, lab *Lab) {
		lab.makeInit("cp1")
		lab.Patch(everywhere)
		only := policyFor("cp1")
		requirePlanned(t, lab.planOf(lab.Client(), "cp1", only), cluster.InPlace, beginsAlone)
		for _, s := range []string{"recreate", "reimage"} {
			lab.Replace("recast.yaml", "vmid: 9001}", "vmid: 9001, strategy: "+s+"}")
			lab.refuses(lab.Client().roll(only), beginsAlone, "cp1")
			lab.Replace("recast.yaml", ", strategy: "+s+"}", "}")
		}
		requireRefused(t, errOf(lab.Client().Remove(t.Context(), "cp1")), beginsAlone)

		files := configFiles{"cp1": cluster.Secret(strings.Replace(string(lab.configOf("cp1")), typeInit, typeControlPlane, 1))}
		user := files.user(lab, firstRun)
		configure := only
		configure.What = []planning.What{planning.Config}
		requirePlanned(t, lab.planOf(user, "cp1", configure), cluster.ApplyConfig)
		must(t, user.roll(configure)(t.Context()))
		requirePlanned(t, lab.planOf(user, "cp1", only), cluster.Recreate)
		must(t, user.roll(only)(t.Context()))
		lab.requireOneEtcd("cp1", "cp2", "cp3")
	})
}

type draft struct {
	controlPlanes, workers, hosts int

	later     []string          // nodes that are not in recast.yaml yet
	documents []string          // of the workers' configurations
	ours      *talosapi.Cluster // shared, so that two worlds can be compared; nil: made
}

type drafted struct {
	nodes []string
	ours  *talosapi.Cluster
	lock  schematics.Lock
	lines map[string]string // of recast.yaml, by node
}

func (l *Lab) newCluster(controlPlanes, workers, hosts int) (nodes []string) {
	l.t.Helper()
	return l.draft(draft{controlPlanes: controlPlanes, workers: workers, hosts: hosts}).nodes
}

// draft writes the files of a cluster that is to be made, as recast init --new does, its nodes spread over the hosts.
func (l *Lab) draft(d draft) drafted {
	l.t.Helper()
	if d.ours == nil {
		d.ours = valueOf(talosapi.NewCluster(sim.ClusterName, "https://127.42.7.10:6443", sim.TalosVersion, sim.KubernetesVersion))(l.t)
	}
	l.canary.addBundle(d.ours.Secrets)
	l.allowShape()
	const class = "{memory: 4096, onboot: true, cloudinit: fast, nics: [{bridge: vmbr0}], disks: [{slot: scsi0, storage: fast, size: 10G, system: true}%s]}\n"
	var text strings.Builder
	fmt.Fprintf(&text, "vmClasses:\n  control-plane: "+class+"  worker: "+class+"nodes:\n", "", ", {slot: scsi1, storage: fast, size: 5G}")
	files, made := configFiles{}, drafted{ours: d.ours, lines: map[string]string{}}
	add := func(node, class string, number int) {
		line := fmt.Sprintf("  - {name: %s, schematic: default, class: %s, host: pve%d, vm: {ipconfig: ['ip=127.42.7.%d/24,gw=127.42.7.1']}}\n", node, class, 1+len(files)%d.hosts, number)
		if made.lines[node] = line; !slices.Contains(d.later, node) {
			made.nodes = append(made.nodes, node)
			text.WriteString(line)
		}
		m := talosapi.Machine{Hostname: node, ControlPlane: class == "control-plane", Installer: "ghcr.io/siderolabs/installer:" + sim.TalosVersion}
		if !m.ControlPlane {
			m.Documents = d.documents
		}
		files[node] = valueOf(d.ours.MachineConfig(m))(l.t)
	}
	for i := range d.controlPlanes {
		add(fmt.Sprintf("cp%d", i+1), "control-plane", 11+i)
	}
	for i := range d.workers {
		add(fmt.Sprintf("wk%d", i+1), "worker", 31+i)
	}
	l.Write("recast.yaml", []byte(l.Config(text.String())))
	for name, content := range l.Schematics() {
		l.Write(name, content)
	}
	made.lock = l.lockSchematics()
	l.Replace("recast.yaml", "roll:\n", fmt.Sprintf("roll:\n  maxUnavailable: {workers: 1, perHost: %d}\n", d.controlPlanes+d.workers))
	l.MachineConfig = files.read
	p := valueOf(l.Client().Project())(l.t)
	config, endpoints, err := configs.Begin(l.t.Context(), p, files.read, "cp1")
	must(l.t, err)
	access := valueOf(adminconfig.Of(sim.ClusterName, config, endpoints))(l.t)
	l.Write("talosconfig", access.Talosconfig)
	l.Write("kubeconfig", access.Kubeconfig)
	return made
}

// requireNodes fails the test unless nothing is stale, each node has one VM, and etcd's members are the control planes.
func (l *Lab) requireNodes(t *testing.T, nodes []string) {
	t.Helper()
	requireInSync(t, l)
	var planes []string
	for _, node := range nodes {
		requireSame(t, 1, l.made([]string{node}), "there are … VMs %s (-want +got)", node)
		if strings.HasPrefix(node, "cp") {
			planes = append(planes, node)
		}
	}
	requireSame(t, planes, l.memberNames(), "members of etcd (-want +got)")
}

func (l *Lab) memberNames() []string {
	return slices.Sorted(slices.Values(cluster.Each(l.EtcdMembers(), func(m talosapi.EtcdMember) string { return m.Name })))
}

// requireCluster fails the test unless the nodes are there, Ready, and nothing of them is twice.
func requireCluster(t *testing.T, l *Lab, nodes ...string) {
	t.Helper()
	l.requireNodes(t, nodes)
	l.requireEtcd()
}

// TestBootstrap makes clusters from nothing. Eight nodes take no longer than one control plane, and then one worker.
func TestBootstrap(t *testing.T) {
	long(t)
	took := func(controlPlanes, workers int) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			lab := New(t, sim.Options{Empty: true, Hosts: 3})
			nodes := lab.newCluster(controlPlanes, workers, 3)
			began := time.Now()
			must(t, errOf(lab.Client().Bootstrap(t.Context(), "cp1")))
			took = time.Since(began)
			requireCluster(t, lab, nodes...)
			requireSame(t, "nothing to do", valueOf(lab.Client().Bootstrap(t.Context(), "cp1"))(t).Outcome, "again (-want +got)")
		})
		return took
	}
	took(1, 0)
	chain, all := took(1, 1), took(3, 5)
	ratio := float64(all) / float64(chain)
	t.Logf("%s for one control plane and a worker, %s for 3 + 5 nodes: %.2f times", chain, all, ratio)
	require(t, ratio <= 1.1, "3 + 5 nodes take %.2f times as long as one control plane and then a worker", ratio)
}

// However a bootstrap is killed, with its journal or without, there is one cluster in the end.
func TestBootstrapKilled(t *testing.T) {
	long(t)
	killGrid[*Lab]{
		begin: func(t *testing.T) *Lab {
			lab := New(t, sim.Options{Empty: true, Hosts: 2})
			lab.newCluster(2, 1, 2)
			return lab
		},
		do:     func(ctx context.Context, c *Client) error { return errOf(c.Bootstrap(ctx, "cp1")) },
		choose: chosenPoints,
		end:    func(t *testing.T, lab *Lab) string { requireCluster(t, lab, "cp1", "cp2", "wk1"); return "" },
	}.killEverywhere(t)
}

func (l *Lab) destroyVM(id int) {
	l.t.Helper()
	must(l.t, l.World.PowerOff(id))
	l.done(l.World.DestroyVM("root@pam", l.hostOf(id), world.DestroyRequest{ID: id}))
}

func squatter(addr string) func(*Lab, drafted) func() {
	return func(l *Lab, d drafted) func() {
		l.founder(d.ours, d.lock, sim.TalosVersion).startAt(600, "squatter", netip.MustParseAddr(addr))
		time.Sleep(time.Minute)
		return func() { l.destroyVM(600) }
	}
}

// otherFile gives a node another file; nil: none.
func otherFile(node string, edit func(cluster.Secret) cluster.Secret) func(*Lab, drafted) func() {
	return func(l *Lab, _ drafted) func() {
		right := l.MachineConfig
		l.MachineConfig = func(ctx context.Context, of string) (cluster.Secret, bool, error) {
			text, there, err := right(ctx, of)
			if of == node {
				text = edit(text)
			}
			return text, there && text != nil, err
		}
		return func() { l.MachineConfig = right }
	}
}

// No cluster begins beside what is there, or with the wrong files. Once that is corrected, the same command makes it.
func TestBootstrapRefused(t *testing.T) {
	type story struct {
		first  string
		before func(*Lab, drafted) (after func())
		made   int // VMs of nodes that are made all the same
		etcd   int // members of etcd
		says   string
	}
	vm := func(id int, name, yaml string) func(*Lab, drafted) func() {
		return func(l *Lab, _ drafted) func() {
			l.Replace("recast.yaml", "{name: cp1,", "{name: cp1,"+yaml)
			l.DefineVM(id, map[string]string{"name": name})
			return func() { l.destroyVM(id) }
		}
	}
	eachLong(t, sim.Options{Empty: true}, map[string]story{
		"a VM has a node's name":             {"cp1", vm(500, "wk1", ""), 0, 0, `wk1: it is in recast.yaml, and parts of it exist: its name has VM 500 "wk1"`},
		"a VM has a node's number":           {"cp1", vm(500, "else", " vmid: 500,"), 0, 0, `cp1: it is in recast.yaml, and parts of it exist: its number has VM 500 "else"`},
		"a machine has the first's address":  {"cp1", squatter("127.42.7.11"), 0, 0, "a machine in maintenance mode answers at 127.42.7.11, which is to be the address of cp1"},
		"a machine has a worker's address":   {"cp1", squatter("127.42.7.31"), 1, 1, "a machine in maintenance mode answers at 127.42.7.31, which is to be the address of wk1"},
		"a machine of the cluster elsewhere": {"cp1", foundling, 1, 0, "Talos' discovery knows another machine of this cluster, cp3: etcd was not begun on cp1"},
		"with a worker":                      {"wk1", nil, 0, 0, "a cluster begins with a control plane, and its machine configuration is that of a worker"},
		"with a file of another cluster":     {"cp1", otherFile("wk1", withOtherToken), 0, 0, "the bootstrap token of Kubernetes: is it the file of another cluster?"},
		"without a file of the first":        {"cp1", otherFile("cp1", func(cluster.Secret) cluster.Secret { return nil }), 0, 0, "cp1: its machine configuration is not in talos.machineConfigs"},
	}, func(t *testing.T, lab *Lab, s story) {
		d := lab.draft(draft{controlPlanes: 1, workers: 1, hosts: 1})
		after := func() {}
		if s.before != nil {
			after = s.before(lab, d)
		}
		there := lab.made(d.nodes)
		requireRefused(t, errOf(lab.as(firstRun).Bootstrap(t.Context(), s.first)), s.says)
		requireSame(t, []int{s.made, s.etcd}, []int{lab.made(d.nodes) - there, len(lab.EtcdMembers())}, "VMs, members")
		after()
		must(t, errOf(lab.as(secondRun).Bootstrap(t.Context(), "cp1")))
		requireCluster(t, lab, d.nodes...)
	})
}

func (l *Lab) made(nodes []string) int {
	return len(cluster.Where(l.World.VMs(), func(vm world.VM) bool { return slices.Contains(nodes, vm.Config["name"]) }))
}

// foundling is a control plane made by hand, not in recast.yaml. Discovery forgets it half an hour after it is gone.
func foundling(l *Lab, d drafted) func() {
	f := l.founder(d.ours, d.lock, sim.TalosVersion)
	uuid := f.start(600, "cp3")
	time.Sleep(time.Minute)
	f.configure(founded("cp3"), uuid, "cp3")
	time.Sleep(3 * time.Minute)
	return func() {
		l.destroyVM(600)
		time.Sleep(31 * time.Minute)
	}
}

// TestBootstrapAfterACluster: a cluster whose machines are gone is not made a second time while disks of it are kept.
func TestBootstrapAfterACluster(t *testing.T) {
	inLongLab(t, sim.Options{Empty: true}, func(t *testing.T, lab *Lab) {
		lab.newCluster(1, 1, 1)
		must(t, errOf(lab.as(firstRun).Bootstrap(t.Context(), "cp1")))
		must(t, errOf(lab.as(secondRun).Remove(t.Context(), "wk1")))
		lab.unlist("wk1")
		lab.destroyVM(lab.namedVM("cp1").ID)
		err := errOf(lab.as(thirdRun).Bootstrap(t.Context(), "cp1"))
		requireRefused(t, err, "has disks of node wk1 of this cluster (recast status lists them): if the cluster is gone for good, recast remove wk1 --free wk1 frees them")
	})
}

// TestBootstrapOfAClusterThatIsThere makes its missing nodes, and nothing else.
func TestBootstrapOfAClusterThatIsThere(t *testing.T) {
	inLongLab(t, sim.Options{Empty: true}, func(t *testing.T, lab *Lab) {
		lab.newCluster(1, 2, 1)
		all := lab.Read("recast.yaml")
		lab.unlist("wk2")
		must(t, errOf(lab.as(firstRun).Bootstrap(t.Context(), "cp1")))
		lab.Patch(everywhere)
		requireDrift(t, lab, "cp1", "wk1")
		before := lab.World.VMs()
		lab.Write("recast.yaml", all)
		requireSame(t, "done", valueOf(lab.as(secondRun).Bootstrap(t.Context(), "cp1"))(t).Outcome, "outcome (-want +got)")
		requireInSync(t, lab, "cp1", "wk1")
		for _, vm := range before {
			requireSame(t, vm, valueOf(lab.World.LookupVM(vm.Host, vm.ID))(t), "VM %d (-before +after)", vm.ID)
		}
	})
}

// If the answer to Talos' Bootstrap is lost, it is never asked a second time: the next command finds out.
func TestBootstrapLostAnswer(t *testing.T) {
	const method = "/machine.MachineService/Bootstrap"
	asked := func(l *Lab) int { return len(l.sent(0, func(c record.Call) bool { return c.Method == method })) }
	stories := map[string]bool{"it was carried out": true, "it was not": false}
	eachLong(t, sim.Options{Empty: true}, stories, func(t *testing.T, lab *Lab, done bool) {
		nodes := lab.newCluster(1, 1, 1)
		c := lab.as(firstRun)
		if done {
			lab.Recorder.Hooks(nil, func(call record.Call) {
				if call.Method == method {
					c.Cut()
					time.AfterFunc(10*time.Second, c.Mend)
				}
			})
		} else {
			lab.Silence(func(r talosapi.Request) bool { return r.Method == method })
		}
		_, err := c.Bootstrap(t.Context(), "cp1")
		lab.Recorder.Hooks(nil, nil)
		lab.Silence(nil)
		requireSame(t, 1, asked(lab), "asked … times (-want +got)")
		if done {
			must(t, err)
		} else {
			requireFault(t, err, fault.Failed, "run the same command again")
		}
		must(t, errOf(lab.as(secondRun).Bootstrap(t.Context(), "cp1")))
		requireSame(t, !done, asked(lab) > 1, "it was asked again (-want +got)")
		requireCluster(t, lab, nodes...)
	})
}

// Of two people, one makes the cluster, whatever the other's recast.yaml says of recast's own VMs.
func TestTwoBootstrapsAtOnce(t *testing.T) {
	type story struct {
		file bool // the second one has its own
		late time.Duration
	}
	eachLong(t, sim.Options{Empty: true, Hosts: 2}, map[string]story{
		"one file":            {},
		"two files":           {file: true},
		"two files, 20s late": {file: true, late: 20 * time.Second},
	}, func(t *testing.T, lab *Lab, s story) {
		nodes := lab.newCluster(1, 1, 2)
		clients := []*Client{lab.Client(), lab.second()}
		if s.file {
			clients[1] = lab.withRange("9100-9199")
		}
		ended := make(chan error, len(clients))
		for i, c := range clients {
			time.Sleep(time.Duration(i) * s.late)
			go func() { ended <- errOf(c.Bootstrap(t.Context(), "cp1")) }()
		}
		lost := 0
		for range clients {
			if err := <-ended; err != nil {
				lost++
				requireFault(t, err, fault.Claimed, "held by run")
			}
		}
		require(t, lost == 1, "%d bootstraps lost", lost)
		requireCluster(t, lab, nodes...)
	})
}

// founder makes a cluster in an empty lab by hand, with secrets of its own.
type founder struct {
	*Lab
	*session
	ours      *talosapi.Cluster
	installer string
	iso       string // volume ID
}

func newFounder(t *testing.T, lab *Lab, talos string) *founder {
	t.Helper()
	ours := valueOf(talosapi.NewCluster("ours", "https://127.42.7.10:6443", talos, sim.KubernetesVersion))(t)
	return lab.founder(ours, lab.draft(draft{controlPlanes: 1, hosts: 1, ours: ours}).lock, talos)
}

// founder publishes the ISO and connects, for a cluster whose recast.yaml and talosconfig are there.
func (l *Lab) founder(ours *talosapi.Cluster, lock schematics.Lock, talos string) *founder {
	l.t.Helper()
	must(l.t, l.Client().Publish(l.t.Context()))
	s := l.session()
	l.t.Cleanup(s.end)
	isos := valueOf(s.machines.Proxmox.(*pve.Client).ISOs(l.t.Context(), "pve1", sim.ISOStorage))(l.t)
	return &founder{
		Lab: l, session: s, ours: ours, iso: sim.ISOStorage + ":iso/" + isos[0].Name,
		installer: "127.0.0.1:8080/nocloud-installer/" + lock.Schematics["default"].SchematicID + ":" + talos,
	}
}

// founded is the static address of a control plane; none of a worker, which gets one by DHCP.
func founded(name string) (addr netip.Addr) {
	if i := slices.Index(controlPlanes, name); i >= 0 {
		addr = netip.AddrFrom4([4]byte{127, 42, 7, byte(11 + i)})
	}
	return addr
}

// foundersSKU is what machines that are configured by hand prove themselves with.
const foundersSKU = "recast00000000000000000000000000000000"

// start makes a VM over the Proxmox API and boots the ISO.
func (f *founder) start(id int, name string) (uuid string) { return f.startAt(id, name, founded(name)) }

func (f *founder) startAt(id int, name string, addr netip.Addr) (uuid string) {
	ctx := f.t.Context()
	uuid = fmt.Sprintf("5ec0ffee-0000-4000-8000-%012d", id)
	vm := map[string]string{
		"name": name, "memory": "4096", "cores": "2", "scsihw": "virtio-scsi-single", "scsi0": "fast:10", "smbios1": "uuid=" + uuid + ",sku=" + foundersSKU,
		"net0": "virtio,bridge=vmbr0", "ide2": f.iso + ",media=cdrom", "boot": "order=scsi0;ide2",
	}
	if addr.IsValid() {
		vm["ide0"], vm["ipconfig0"] = "fast:cloudinit", "ip="+addr.String()+"/24,gw=127.42.7.1"
	}
	must(f.t, f.machines.Proxmox.CreateVM(ctx, "pve1", cluster.VMID(id), vm))
	made := valueOf(f.machines.Proxmox.VM(ctx, cluster.VMID(id)))(f.t)
	must(f.t, f.machines.Proxmox.Start(ctx, made))
	return uuid
}

func (f *founder) configure(addr netip.Addr, uuid, name string) {
	config := valueOf(f.ours.MachineConfig(talosapi.Machine{Hostname: name, ControlPlane: strings.HasPrefix(name, "cp"), Installer: f.installer}))(f.t)
	must(f.t, f.talos.ApplyConfig(f.t.Context(), addr, cluster.Proof{UUID: uuid, SKU: foundersSKU}, config))
}

func bootstrap(ctx context.Context, c *client.Client) error {
	return c.Bootstrap(ctx, &machineapi.BootstrapRequest{})
}

func (f *founder) bootstrap(addr netip.Addr) error {
	return f.TalosctlAt(f.t.Context(), addr, bootstrap)
}

// bootstrapSoon repeats bootstrap until the machine is there and accepts it.
func (f *founder) bootstrapSoon(addr netip.Addr) {
	f.t.Helper()
	early := false
	for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(5 * time.Second) {
		err := f.bootstrap(addr)
		switch client.StatusCode(err) {
		case codes.OK:
			require(f.t, early, "a machine that installs Talos accepted a bootstrap")
			return
		case codes.FailedPrecondition:
			early = true
		case codes.Unavailable, codes.DeadlineExceeded:
		default:
			f.t.Fatal(err)
		}
	}
	f.t.Fatal("no bootstrap in 10 minutes")
}

// blank finds the machine in maintenance mode with that UUID among those with a lease.
func (f *founder) blank(uuid string) netip.Addr {
	for n := range 20 {
		addr := netip.AddrFrom4([4]byte{127, 42, 7, byte(231 + n)})
		if m, err := f.talos.MaintenanceMachine(f.t.Context(), addr); err == nil && m.UUID == uuid {
			return addr
		}
	}
	f.t.Fatalf("no machine %s in maintenance mode", uuid)
	return netip.Addr{}
}

func (f *founder) kubeconfig(addr netip.Addr) (file []byte) {
	must(f.t, f.TalosctlAt(f.t.Context(), addr, func(ctx context.Context, c *client.Client) (err error) {
		file, err = c.Kubeconfig(ctx)
		return err
	}))
	return file
}

func (f *founder) nodes(kubeconfig []byte, at string) ([]string, error) {
	file := bytes.ReplaceAll(kubeconfig, []byte("127.42.7.10:6443"), []byte(at+":6443"))
	k := valueOf(kube.New(file, kube.Options{Dial: f.Lab.Lab.Client().DialContext, Poll: time.Second}))(f.t)
	defer k.Close()
	nodes, err := k.Nodes(f.t.Context())
	nodes = cluster.Where(nodes, func(n cluster.KubeNode) bool { return n.Ready })
	return cluster.Each(nodes, func(n cluster.KubeNode) string { return n.Name }), err
}

func (f *founder) requireNodes(kubeconfig []byte, at netip.Addr, want ...string) {
	f.t.Helper()
	requireSame(f.t, want, valueOf(f.nodes(kubeconfig, at.String()))(f.t), "Ready nodes at %s (-want +got)", at)
}

// sharedAddress is that of the load balancer before the API servers.
var sharedAddress = netip.MustParseAddr("127.42.7.10")

var certificateAuthority = regexp.MustCompile(`certificate-authority-data: \S+`)

// With secrets that the lab has not made: a control plane, then another, and workers.
func TestClusterFromNothing(t *testing.T) {
	eachLongIn(t, func(talos string) sim.Options { return sim.Options{Empty: true, TalosVersion: talos} }, map[string]string{
		"1.12": "v1.12.7", "1.13": "v1.13.9", "1.14": "v1.14.1",
	}, func(t *testing.T, lab *Lab, talos string) {
		f := newFounder(t, lab, talos)
		cp1, cp2 := founded("cp1"), founded("cp2")
		uuid := f.start(101, "cp1")
		time.Sleep(time.Minute)
		requireCode(t, f.bootstrap(cp1), codes.Unavailable) // its certificate is not that of the cluster
		f.configure(cp1, uuid, "cp1")
		for _, at := range []netip.Addr{sharedAddress, cp1} {
			require(t, errOf(lab.Lab.Client().DialContext(t.Context(), "tcp", at.String()+":6443")) != nil,
				"there is a Kubernetes API at %s", at)
		}
		f.bootstrapSoon(cp1)
		time.Sleep(time.Minute)
		requireCode(t, f.bootstrap(cp1), codes.AlreadyExists)
		kubeconfig := f.kubeconfig(cp1)
		f.requireNodes(kubeconfig, sharedAddress, "cp1")
		f.requireNodes(kubeconfig, cp1, "cp1")
		other, err := lab.Kubeconfig("system:masters", time.Hour) // by the lab's own CA
		must(t, err)
		require(t, errOf(f.nodes(other, sharedAddress.String())) != nil, "the API's certificate is not of the cluster's CA")
		require(t, errOf(f.nodes(certificateAuthority.ReplaceAll(other, certificateAuthority.Find(kubeconfig)), sharedAddress.String())) != nil,
			"a client's certificate of another CA is accepted")
		require(t, errOf(lab.Kube.Store().Get(t.Context(), store.Deployments(), "default", "web")) != nil,
			"a new cluster has the lab's workload")
		must(t, errOf(lab.Kube.Store().Get(t.Context(), store.Deployments(), "kube-system", "coredns")))

		uuids := map[string]string{"cp2": f.start(102, "cp2"), "wk1": f.start(103, "wk1"), "wk2": f.start(104, "wk2")}
		time.Sleep(time.Minute)
		wk1, wk2 := f.blank(uuids["wk1"]), f.blank(uuids["wk2"])
		f.configure(cp2, uuids["cp2"], "cp2")
		f.configure(wk1, uuids["wk1"], "wk1")
		f.configure(wk2, uuids["wk2"], "wk2")
		time.Sleep(5 * time.Minute)
		f.requireNodes(kubeconfig, cp2, "cp1", "cp2", "wk1", "wk2")
		require(t, f.bootstrap(wk1) != nil, "a worker accepted a bootstrap")
		requireCount(t, 4, valueOf(f.talos.Members(t.Context()))(t), "members")
		lab.requireEtcd()
	})
}

// TestBootstrapTwice: a bootstrap of a second control plane makes a second etcd.
func TestBootstrapTwice(t *testing.T) {
	inLab(t, sim.Options{Empty: true}, func(t *testing.T, lab *Lab) {
		f := newFounder(t, lab, sim.TalosVersion)
		uuids := map[string]string{"cp1": f.start(101, "cp1"), "cp2": f.start(102, "cp2")}
		time.Sleep(time.Minute)
		for name, uuid := range uuids {
			f.configure(founded(name), uuid, name)
		}
		time.Sleep(3 * time.Minute)
		requireNone(t, lab.allStored(store.Nodes(), ""), "before the bootstrap there are nodes")
		must(t, f.bootstrap(founded("cp1")))
		requireNone(t, lab.EtcdViolations(), "one bootstrap")
		must(t, f.bootstrap(founded("cp2")))
		time.Sleep(time.Minute)
		v := lab.EtcdViolations()
		require(t, len(v) == 1 && strings.Contains(v[0], " formed etcd number 2"), "two bootstraps: %q", v)
		requireCount(t, 1, lab.State().Broken, "promises that recast lab check finds broken")
	})
}

func requireCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	requireSame(t, want, client.StatusCode(err), "%v (-want +got)", err)
}

// TestOutsideClients uses a lab served by recast lab up with other clients, like a user in another terminal.
func TestOutsideClients(t *testing.T) {
	long(t)
	t.Parallel()
	dir := labUp(t)
	t.Run("machinery", func(t *testing.T) { talksTalos(t, filepath.Join(dir, "talosconfig")) })
	t.Run("client-go and kubectl drain", func(t *testing.T) { drains(t, filepath.Join(dir, "kubeconfig")) })
}

// labUp builds recast, serves a lab with it until the test ends, and returns its working directory.
func labUp(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "recast")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../../cmd/recast").CombinedOutput(); err != nil {
		t.Fatalf("build recast: %v\n%s", err, out)
	}
	lab := filepath.Join(dir, "lab")
	var out bytes.Buffer
	c := exec.CommandContext(t.Context(), binary, "lab", "up", "--dir", lab, "--speed", "40")
	c.Stdout, c.Stderr = &out, &out
	must(t, c.Start())
	t.Cleanup(func() {
		if err := c.Wait(); err == nil { // the test's context has killed it
			t.Logf("the lab ended by itself:\n%s", out.String())
		}
	})
	for range 1800 {
		if _, err := os.Stat(filepath.Join(lab, "lab.json")); err == nil {
			return lab
		}
		<-time.After(100 * time.Millisecond) // waiting for another process
	}
	t.Fatal("the lab never got ready")
	return ""
}

func talksTalos(t *testing.T, talosconfig string) {
	config := valueOf(clientconfig.Open(talosconfig))(t)
	c := valueOf(client.New(t.Context(), client.WithConfig(config)))(t)
	defer c.Close()
	version := valueOf(c.Version(t.Context()))(t)
	requireSame(t, "v1.13.9", version.GetMessages()[0].GetVersion().GetTag(), "Talos (-want +got)")
	extensions := valueOf(safe.StateListAll[*runtime.ExtensionStatus](t.Context(), c.COSI))(t)
	require(t, extensions.Len() >= 2, "%d extensions", extensions.Len())
}

func drains(t *testing.T, kubeconfig string) {
	config := valueOf(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	api := valueOf(kubernetes.NewForConfig(config))(t)
	node := valueOf(api.CoreV1().Nodes().Get(t.Context(), "wk1", metav1.GetOptions{}))(t)
	helper := &drain.Helper{
		Ctx: t.Context(), Client: api, Timeout: time.Minute, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true,
		EvictErrorRetryDelay: 100 * time.Millisecond, Out: t.Output(), ErrOut: t.Output(),
	}
	must(t, drain.RunCordonOrUncordon(helper, node, true))
	must(t, drain.RunNodeDrain(helper, "wk1"))
	pods := valueOf(api.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=wk1"}))(t)
	for _, p := range pods.Items {
		require(t, len(p.OwnerReferences) != 0 && p.OwnerReferences[0].Kind == "DaemonSet", "pod %s is still there", p.Name)
	}
}
