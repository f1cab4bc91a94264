package simtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// rpc is a request to a machine: a method, and the type of the resource that it reads.
type rpc struct{ method, resource string }

func (r rpc) String() string { return strings.TrimSpace(path.Base(r.method) + " " + r.resource) }

// connection is a machine that accepts connections and never answers anything.
var connection = rpc{method: "connection"}

// silentCell is what a machine stops answering, and when.
type silentCell struct {
	what rpc
	n    int // at the n-th request; 0: every machine answers
	also rpc // that is not answered either
}

func (c silentCell) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %d %s", c.what, c.n, strings.Trim(c.also.String(), ".")))
}

// mute makes the machine that gets the n-th request of a kind never answer that kind again.
type mute struct {
	silentCell

	mu           sync.Mutex
	counted      map[rpc]int
	beforeReboot int // number of requests for machines' status before the first reboot
	vmid         int // of the silent machine
}

func (m *mute) silent(r talosapi.Request) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	asked := rpc{r.Method, r.Resource}
	if r.Method == "/machine.MachineService/Reboot" || r.Method == "/machine.MachineService/Upgrade" {
		m.beforeReboot = m.counted[machineStatus]
	}
	if r.Method == "" {
		asked = connection
	}
	m.counted[asked]++
	if asked == m.what && m.counted[asked] == m.n {
		m.vmid = r.VMID
	}
	return m.vmid == r.VMID && (asked == m.what || asked == m.also)
}

func (l *Lab) during(c silentCell, do func() error) (*mute, error) {
	m := &mute{silentCell: c, counted: map[rpc]int{}}
	l.Silence(m.silent)
	defer l.Silence(nil)
	return m, do()
}

// cells are all recorded requests, each at its first use and half-way.
func (m *mute) cells() (cells []silentCell) {
	for what, n := range m.counted {
		cells = append(cells, silentCell{what: what, n: 1})
		if n > 1 {
			cells = append(cells, silentCell{what: what, n: n/2 + 1})
		}
	}
	slices.SortFunc(cells, func(a, b silentCell) int { return strings.Compare(a.String(), b.String()) })
	return cells
}

type silentVerb struct {
	o       sim.Options
	node    string
	kept    int  // number of kept old system disks in the end
	stale   bool // the node differs from the lock in the end
	inSync  bool // no node differs from the lock in the end
	prepare edit
	do      func(c *Client, node string) func(context.Context) error
}

// lab is a lab before the command, and its members of etcd before that.
func (v silentVerb) lab(t *testing.T) (l *Lab, members map[string]string) {
	l = New(t, v.o)
	members = l.memberIDs()
	v.prepare(l)
	return l, members
}

// at silences a machine: the command ends as it has to, and succeeds once the machine answers again.
func (v silentVerb) at(t *testing.T, c silentCell) {
	l, members := v.lab(t)
	m, err := l.during(c, func() error { return inTime(t.Context(), t, v.do(l.as(secondRun), v.node)) })
	mustBe(t, m.vmid != 0, "no machine was asked for it %d times: %v", c.n, m.counted)
	l.RequireIntact()
	if err != nil {
		kind := fault.KindOf(err)
		require(t, (kind == fault.Failed || kind == fault.Refused) && len(fault.Hints(err)) != 0,
			"kind %d, hints %q", kind, fault.Hints(err))
		l.requireNamed(t, err.Error(), c.what, m.vmid)
		if c.also != (rpc{}) {
			l.requireNamed(t, err.Error(), c.also, m.vmid)
		}
		err = v.again(l, err)(t.Context())
		if err != nil && strings.Contains(strings.Join(fault.Hints(err), "\n"), "recast roll finishes it") {
			err = v.finish(l)(t.Context())
		}
	}
	if err != nil && strings.Contains(err.Error(), "it came back as its old system") {
		err = v.again(l, err)(t.Context()) // it does what it was told before
	}
	must(t, err)
	v.requireDone(t, l, members)
}

// again is the same command; for a build that failed in place, with another build.
func (v silentVerb) again(l *Lab, err error) func(context.Context) error {
	if strings.Contains(strings.Join(fault.Hints(err), "\n"), "this build is not tried in place on it again") {
		l.Patch(everywhere)
	}
	return v.do(l.as(thirdRun), v.node)
}

// finish makes a roll finish what another command had begun, and nothing else.
func (v silentVerb) finish(l *Lab) func(context.Context) error {
	c := l.as(thirdRun)
	c.Confirm = func(p planning.Plan) (bool, error) { return p.Run == secondRun, nil }
	return func(ctx context.Context) error {
		err := c.rollNode(v.node)(ctx)
		if fault.KindOf(err) == fault.Interrupted {
			return nil
		}
		return err
	}
}

func (v silentVerb) requireDone(t *testing.T, l *Lab, members map[string]string) {
	stale := l.others(v.node)
	switch {
	case v.inSync:
		stale = nil
	case v.stale:
		stale = l.others("")
	}
	requireDrift(t, l, stale...)
	l.requireWell(v.node, v.kept, members)
}

// requireNamed requires a message to say which machine does not answer what.
func (l *Lab) requireNamed(t *testing.T, said string, what rpc, vmid int) {
	named := slices.ContainsFunc(l.Nodes, func(n sim.Node) bool {
		return n.VMID == vmid && (strings.Contains(said, n.Name) || strings.Contains(said, n.Addr.String()))
	})
	says := what.says()
	require(t, named && says != "" && strings.Contains(said, says) && strings.Contains(said, "gave up"),
		"VM %d does not answer %s (%q), and this is said:\n%s", vmid, what, says, said)
}

var machineStatus = rpc{"/cosi.resource.State/Get", runtime.MachineStatusType}

// says is how recast's errors name a request.
func (r rpc) says() string {
	if r.resource != "" {
		return map[string]string{"Get": "read ", "List": "list "}[path.Base(r.method)] + r.resource
	}
	return map[string]string{
		connection.method:                               "connection",
		"/machine.MachineService/Version":               "read Talos version",
		"/machine.MachineService/Read":                  "read /",
		"/machine.MachineService/EtcdMemberList":        "list etcd's members",
		"/machine.MachineService/EtcdStatus":            "read etcd's status",
		"/machine.MachineService/EtcdAlarmList":         "list etcd's alarms",
		"/machine.MachineService/EtcdSnapshot":          "read etcd's snapshot",
		"/machine.MachineService/EtcdForfeitLeadership": "hand etcd's leadership over",
		"/machine.MachineService/EtcdLeaveCluster":      "leave etcd",
		"/machine.MachineService/EtcdRecover":           "upload the snapshot",
		"/machine.MachineService/Bootstrap":             "begin with ",
		"/machine.MachineService/ServiceList":           "list the services",
		"/machine.MachineService/ApplyConfiguration":    "apply",
		"/machine.MachineService/Reboot":                "reboot",
		"/machine.MachineService/Rollback":              "roll back",
		"/machine.MachineService/Upgrade":               "install",
		"/machine.MachineService/List":                  "list /",
		"/machine.ImageService/Pull":                    "pull ",
		"/machine.LifecycleService/Upgrade":             "install ",
	}[r.method]
}

// silentVerbs are the commands that change a node; each needs its own world.
func silentVerbs() map[string]silentVerb {
	verbs := map[string]silentVerb{
		"restore cp1": {o: oneWorker(), node: "cp1", inSync: true, prepare: func(l *Lab) {
			l.backUp()
			l.reset("cp1", "EPHEMERAL")
		}, do: func(c *Client, node string) func(context.Context) error {
			return func(ctx context.Context) error {
				return errOf(c.Restore(ctx, filepath.Join(c.Dir, snapshots, c.lab.snapshotFiles()[0]), node))
			}
		}},
	}
	for node, o := range map[string]sim.Options{"wk1": oneWorker(), "cp2": threePlanes} {
		patched := func(l *Lab) { l.Patch(everywhere) }
		halfway := all(patched, func(l *Lab) { l.as(firstRun).rollKilled(after("delete-vm"), policyFor(node)) })
		before := all(patched, func(l *Lab) { l.as(firstRun).mustRoll(policyFor(node)) })
		back := func(c *Client, node string) func(context.Context) error { return c.goBack(node) }
		verbs["recover "+node] = silentVerb{o: o, node: node, stale: true, prepare: halfway, do: (*Client).giveUp}
		verbs["rollback "+node] = silentVerb{o: o, node: node, kept: 1, stale: true, prepare: before, do: back}
		for s, kept := range map[cluster.Strategy]int{cluster.Recreate: 1, cluster.Reimage: 1, cluster.InPlace: 0} {
			stale := all(strategy(s), patched)
			verbs["roll "+string(s)+" "+node] = silentVerb{o: o, node: node, kept: kept, do: (*Client).rollNode, prepare: stale}
		}
	}
	for name, v := range map[string]struct {
		o          sim.Options
		node, line string
	}{"configure wk1": {oneWorker(), "wk1", noReboot}, "configure cp2": {threePlanes, "cp2", noReboot}, "configure cp2, with a reboot": {threePlanes, "cp2", needsReboot}} {
		verbs[name] = silentVerb{o: v.o, node: v.node, inSync: true, do: (*Client).rollNode, prepare: func(l *Lab) {
			files := l.keptConfigs()
			files.set(l.t, v.node, v.line)
			l.MachineConfig = files.read
		}}
	}
	for node, v := range map[string]struct {
		o        sim.Options
		settings string
	}{"wk1": {oneWorker(), "memory: 6144, tags: [talos], disks: [{slot: scsi1, size: 25G}]"}, "cp2": {threePlanes, "memory: 6144, tags: [talos]"}} {
		verbs["reshape "+node] = silentVerb{o: v.o, node: node, inSync: true, do: (*Client).rollNode, prepare: func(l *Lab) { l.shape(node, v.settings) }}
	}
	old := verbs["roll in-place wk1"]
	old.o.TalosVersion = "v1.12.6"
	verbs["roll in-place wk1, which has the old API"] = old
	return verbs
}

func (c *Client) rollNode(node string) func(context.Context) error { return c.roll(policyFor(node)) }

// silentReads are commands that change nothing. Their results count as output besides the error.
func silentReads() map[string]func(context.Context, *Client) (any, error) {
	return map[string]func(context.Context, *Client) (any, error){
		"drift":        func(ctx context.Context, c *Client) (any, error) { return c.Drift(ctx) },
		"drift --deep": func(ctx context.Context, c *Client) (any, error) { return c.DeepDrift(ctx) },
		"plan":         func(ctx context.Context, c *Client) (any, error) { return c.Plan(ctx, planning.Policy{}) },
		"provenance":   func(ctx context.Context, c *Client) (any, error) { return c.Provenance(ctx, "cp2") },
		"status":       func(ctx context.Context, c *Client) (any, error) { return c.Status(ctx) },
		"doctor":       func(ctx context.Context, c *Client) (any, error) { return c.Doctor(ctx) },
		"backup": func(ctx context.Context, c *Client) (any, error) {
			time.Sleep(time.Second) // its file is named by the time
			return nil, errOf(c.Backup(ctx, pipeline.BackupOptions{}))
		},
	}
}

// longestRoll is the maximum duration of a roll of a lab's workers in lab time, under any
// fault, and longestRead that of a read-only command.
const longestRoll, longestRead = 30 * time.Minute, 3 * time.Minute

// inTime fails the test if do exceeds longestRoll.
func inTime(ctx context.Context, t *testing.T, do func(context.Context) error) error {
	start := time.Now()
	err := do(ctx)
	took := time.Since(start)
	require(t, took <= longestRoll, "it took %s: %v", took, err)
	return err
}

// TestSilence silences a machine for each of recast's requests to machines, the first time and half-way, in every
// command: it ends in time with an error that says who does not answer what, nothing is lost, and the same command
// succeeds once the machine answers again.
func TestSilence(t *testing.T) {
	t.Parallel()
	var silenced atomic.Int64
	t.Cleanup(func() { t.Attr("rpcs-silenced", fmt.Sprint(silenced.Load())) })
	for name, v := range silentVerbs() {
		t.Run(name, func(t *testing.T) {
			part := longRow(t)
			var undisturbed *mute
			synctest.Test(t, func(t *testing.T) {
				l, members := v.lab(t)
				undisturbed = valueOf(l.during(silentCell{}, func() error { return v.do(l.as(secondRun), v.node)(t.Context()) }))(t)
				v.requireDone(t, l, members)
			})
			cells := undisturbed.cells()
			if strings.HasPrefix(name, "roll in-place") { // it does not come back, and can't be rolled back
				cells = append(cells, silentCell{what: machineStatus, n: undisturbed.beforeReboot + 3, also: rpc{"/machine.MachineService/Rollback", ""}})
			}
			for _, c := range cells {
				t.Run(c.String(), func(t *testing.T) {
					part(t)
					silenced.Add(1)
					inBubble(t, func(t *testing.T) { v.at(t, c) })
				})
			}
		})
	}
	for name, read := range silentReads() {
		t.Run(name, func(t *testing.T) {
			long(t)
			inBubble(t, func(t *testing.T) { silenced.Add(readSilently(t, read)) })
		})
	}
}

// readSilently silences a machine for each request in turn. If another is asked instead, the output is as usual.
func readSilently(t *testing.T, read func(context.Context, *Client) (any, error)) (silenced int64) {
	l := New(t, sim.Options{ControlPlanes: 3, Workers: 1})
	l.Patch(everywhere)
	said := ""
	do := func() error {
		res, err := read(t.Context(), l.Client())
		text, errJSON := json.Marshal(res)
		said = fmt.Sprintf("%s\n%v\n%s", text, err, strings.Join(fault.Hints(err), "\n"))
		return errors.Join(err, errJSON)
	}
	undisturbed := valueOf(l.during(silentCell{}, do))(t)
	usual := said
	for _, c := range undisturbed.cells() {
		start := time.Now()
		m, _ := l.during(c, do) // the error is part of the output
		took := time.Since(start)
		require(t, took <= longestRead, "%s: it took %s", c, took)
		if said != usual {
			l.requireNamed(t, said, c.what, m.vmid)
		}
		silenced++
	}
	must(t, do())
	requireSame(t, usual, said, "once it answers again (-usual +now)")
	l.RequireIntact()
	return silenced
}

// slowFor is how long an API is slow, or refuses connections, at each step.
const slowFor = time.Minute

type slowRoll struct {
	node     string
	strategy cluster.Strategy
}

func (s slowRoll) String() string { return fmt.Sprintf("%s %s", s.strategy, s.node) }

// play rolls the node, calls strike at the beginning of each step, and returns the final world.
func (s slowRoll) play(t *testing.T, secrets *talosapi.Cluster, strike func(l *Lab, c *Client)) (dump string, own *talosapi.Cluster) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t, sim.Options{ControlPlanes: 3, Workers: 1, Talos: secrets})
		l.patch(everywhere, "strategy: "+string(s.strategy))
		c := l.Client()
		strikes := 0
		c.Emit = func(e step.Event) {
			if strings.Contains(e.Path, "/"+s.node) && e.Status == step.Started {
				strikes++
				strike(l, c)
			}
		}
		c.mustRoll(policyFor(s.node))
		require(t, strikes >= 10, "it was slow in %d steps only", strikes)
		l.requireUpgraded(t, s.node)
		requireNoClaim(t, l)
		dump, own = l.settledDump(), l.Talos
	})
	return dump, own
}

// TestSlowServers: no step fails while an API is slow or refuses for a minute at every step, and the world is the same.
func TestSlowServers(t *testing.T) {
	strikes := map[string]func(l *Lab, c *Client){"refused": func(_ *Lab, c *Client) {
		c.Cut()
		time.AfterFunc(slowFor, c.Mend)
	}}
	for _, server := range sim.SlowServers {
		strikes["slow "+server] = func(l *Lab, _ *Client) { must(l.t, l.Slow(server, slowFor)) }
	}
	rolls := []slowRoll{{"wk1", cluster.Recreate}, {"cp2", cluster.Recreate}, {"wk1", cluster.InPlace}, {"cp2", cluster.InPlace}}
	for _, s := range rolls {
		ref := sync.OnceValues(func() (string, *talosapi.Cluster) { return s.play(t, nil, func(*Lab, *Client) {}) })
		for name, strike := range strikes {
			t.Run(s.String()+" "+name, func(t *testing.T) {
				long(t)
				t.Parallel()
				want, secrets := ref()
				got, _ := s.play(t, secrets, strike)
				requireSame(t, want, got, "the world differs from an undisturbed one (-undisturbed +here)")
			})
		}
	}
}

const (
	manyVolumes = 2000 // PersistentVolumes, whatever the number of nodes
	listPage    = 500  // objects in an answer of Kubernetes
)

type mostAsked struct {
	proxmox, ofNode int   // requests to Proxmox
	bytesOfNode     int64 // of Proxmox' answers
	talos           int   // requests to all machines
	talosOfNode     int   // … to each
}

// TestOneLook: plan and doctor request nothing twice from Kubernetes and Proxmox, whatever the number of nodes and
// volumes. Only requests about a VM or a machine grow with the number of nodes; Kubernetes sends each object once.
func TestOneLook(t *testing.T) {
	plan := func(ctx context.Context, c *Client) error { return errOf(c.Plan(ctx, planning.Policy{})) }
	doctor := func(ctx context.Context, c *Client) error { return errOf(c.Doctor(ctx)) }
	commands := map[string]struct {
		patch string // of a schematic, before
		run   deed
		most  mostAsked
	}{
		"plan":           {"", plan, mostAsked{16, 6, 3 << 10, 1, 16}},
		"plan with work": {sim.PatchedExtension, plan, mostAsked{16, 6, 3 << 10, 1, 30}},
		"doctor":         {"", doctor, mostAsked{46, 7, 3 << 10, 12, 24}},
	}
	for _, nodes := range []int{10, 60, 500} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			if nodes > 10 {
				long(t)
			}
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lab := New(t, sim.Options{ControlPlanes: 3, Workers: nodes - 3, Hosts: 3})
				lab.putVolumes(manyVolumes)
				time.Sleep(time.Minute) // until every pod has its status
				objects, once := lab.objectsOnce("nodes", "pods", "persistentvolumes")
				for _, name := range slices.Sorted(maps.Keys(commands)) {
					if patch := commands[name].patch; patch != "" {
						lab.Patch(patch)
					}
					from := len(lab.Recorder.Calls())
					must(t, commands[name].run(t.Context(), lab.Client()))
					asked := sum(lab.Recorder.Calls()[from:])
					t.Logf("%s: %+v", name, asked)
					asked.require(t, name, commands[name].most, nodes, objects, once)
				}
			})
		})
	}
}

// putVolumes adds that many volumes of network storage, and for every hundred one on a worker's disk.
func (l *Lab) putVolumes(n int) {
	for i := range n {
		name := fmt.Sprintf("pvc-%04d", i)
		pv := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "rbd.csi.ceph.com"}},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				ClaimRef:    &corev1.ObjectReference{Namespace: "default", Name: "claim-" + name},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: "rbd.csi.ceph.com", VolumeHandle: "0001-0009-rook-ceph-" + name, FSType: "ext4",
				}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		}
		if i%100 == 0 {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/var/mnt/" + name}}
			pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"wk1"}}},
			}}}}
		}
		l.put(store.Volumes(), pv)
	}
}

// objectsOnce counts the objects of each kind, and their size as JSON.
func (l *Lab) objectsOnce(kinds ...string) (objects map[string]int, bytes int64) {
	objects = map[string]int{}
	for _, r := range store.Resources() {
		if !slices.Contains(kinds, r.Resource) {
			continue
		}
		list := l.allStored(r.GroupVersionResource, "")
		objects[r.Resource] = len(list)
		for _, o := range list {
			bytes += int64(len(valueOf(json.Marshal(o))(l.t))) + 1
		}
	}
	return objects, bytes
}

type asked struct {
	Requests map[string]int
	Bytes    map[string]int64
	twice    map[string]int // by request
}

func sum(calls []record.Call) asked {
	a := asked{Requests: map[string]int{}, Bytes: map[string]int64{}, twice: map[string]int{}}
	for _, c := range calls {
		a.Requests[c.Proto]++
		a.Bytes[c.Proto] += c.Bytes
		if c.Proto == "kubernetes" || c.Proto == "proxmox" {
			a.twice[c.Proto+" "+c.Method+" "+c.Path]++
		}
	}
	maps.DeleteFunc(a.twice, func(_ string, n int) bool { return n == 1 })
	return a
}

func (a asked) require(t *testing.T, command string, most mostAsked, nodes int, objects map[string]int, once int64) {
	for _, request := range slices.Sorted(maps.Keys(a.twice)) {
		if strings.HasSuffix(request, "/cluster/resources?type=vm") && a.twice[request] == 2 {
			continue // doctor has its own list of containers
		}
		t.Errorf("%s: asked %d times: %s", command, a.twice[request], request)
	}
	lists := 1 // the API groups
	for _, n := range objects {
		lists += max(1, (n+listPage-1)/listPage)
	}
	limits := map[string]int{"kubernetes": lists, "proxmox": most.proxmox + most.ofNode*nodes, "talos": most.talos + most.talosOfNode*nodes}
	for proto, limit := range limits {
		require(t, a.Requests[proto] <= limit, "%s: %s: %d for %d, most %d", command, proto, a.Requests[proto], nodes, limit)
	}
	const around = 64 << 10 // lists have a head, and the groups no objects
	limit := once + around
	require(t, a.Bytes["kubernetes"] <= limit, "%s: Kubernetes sent %d, most %d", command, a.Bytes["kubernetes"], limit)
	limit = around + most.bytesOfNode*int64(nodes)
	require(t, a.Bytes["proxmox"] <= limit,
		"%s: Proxmox has sent %d bytes about %d nodes, more than %d", command, a.Bytes["proxmox"], nodes, limit)
}

// TestDriftAsksLittle counts requests, and how many depend on an earlier answer: here only the network takes time.
func TestDriftAsksLittle(t *testing.T) {
	const latency = 20 * time.Millisecond
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 3, Hosts: 2, Latency: latency}, func(t *testing.T, lab *Lab) {
		before := lab.State().Requests
		began := time.Now()
		requireDrift(t, lab)
		waits := int(time.Since(began) / latency)
		after := lab.State().Requests
		nodes := len(lab.Nodes)
		for proto, most := range map[string]int{
			"proxmox":    nodes + 4,    // each VM; the lists of VMs, hosts and storages, and the quorum
			"talos":      13*nodes + 1, // each machine; the members
			"kubernetes": 2,            // the Nodes, and which storage systems there are
		} {
			asked := after[proto] - before[proto]
			require(t, asked <= most, "%s was asked %d times about %d nodes, more than %d", proto, asked, nodes, most)
		}
		const most = 10 // including handshakes
		require(t, waits <= most, "it waited for %d answers one after the other, more than %d", waits, most)
	})
}

func (c *Client) Build(ctx context.Context) error {
	s, err := c.connectImages()
	if err != nil {
		return err
	}
	defer s.end()
	_, err = pipeline.Build(ctx, s.project, s.images, &step.Runner{Emit: c.Emit})
	return err
}

// TestNothingToDo: a stage whose outputs exist writes nothing, reads no content and takes less than a second, without
// requests to Talos or Kubernetes. The exceptions: lock reads the registry's list of extensions, and publish makes Proxmox
// compare the checksum of each ISO, if the token allows that, which takes its time.
func TestNothingToDo(t *testing.T) {
	mirror := configuration("images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n")
	type story struct {
		bring edit
		isos  int // that are compared: one for each schematic
	}
	eachInLab(t, oneWorker(), map[string]story{
		"uploads":          {mirror, 0},
		"without a mirror": {all(), 0},
		"downloads": {all(mirror, func(l *Lab) {
			l.World.AddRole("Downloads", "Sys.AccessNetwork")
			for _, who := range l.World.ACLs() {
				l.World.Grant(world.ACL{Path: "/", Who: who.Who, Role: "Downloads", Propagate: true})
			}
		}), 2},
	}, func(t *testing.T, lab *Lab, s story) {
		s.bring(lab)
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().Publish(t.Context()))
		lab.requireIdle(t, "lock", 0, func(c *Client) error { return errOf(c.Lock(t.Context(), pipeline.LockOptions{})) })
		lab.requireIdle(t, "lock --update", 0, func(c *Client) error { return errOf(c.Lock(t.Context(), pipeline.LockOptions{Update: true})) })
		lab.requireIdle(t, "build", 0, func(c *Client) error { return c.Build(t.Context()) })
		lab.requireIdle(t, "publish", s.isos, func(c *Client) error { return c.Publish(t.Context()) })
	})
}

// requireIdle runs a stage that only has to have that many checksums compared.
func (l *Lab) requireIdle(t *testing.T, stage string, checksums int, run func(*Client) error) {
	file := filepath.Join(l.Dir, "recast.lock")
	was := valueOf(os.Stat(file))(t)
	lock, calls, tasks, start := l.Read("recast.lock"), len(l.Recorder.Calls()), len(l.World.Tasks()), time.Now()
	err := run(l.Client())
	mustBe(t, err == nil, "%s: %v", stage, err)
	took := time.Since(start)
	compared := l.World.Tasks()
	compared = compared[:len(compared)-tasks] // the latest are first
	for _, task := range compared {
		took -= task.End.Sub(task.Start)
		log := strings.Join(task.Log, "\n")
		require(t, task.Type == "download" && strings.Contains(log, "no need to download"),
			"%s: task %s: %s", stage, task.UPID, log)
	}
	most := time.Second * time.Duration(max(1, checksums)) // each is polled for
	require(t, took < most, "%s took %s, the comparing of %d checksums left out", stage, took, checksums)
	require(t, len(compared) == checksums, "%s had %d checksums compared, want %d", stage, len(compared), checksums)
	requireNone(t, l.sent(calls, func(c record.Call) bool { return !harmless(stage, c) }), stage)
	is := valueOf(os.Stat(file))(t)
	require(t, bytes.Equal(l.Read("recast.lock"), lock) && is.ModTime().Equal(was.ModTime()) && os.SameFile(was, is),
		"%s wrote recast.lock", stage)
}

// harmless says whether a request of a stage neither changes anything nor reads image content.
func harmless(stage string, c record.Call) bool {
	reads := c.Method == http.MethodGet || c.Method == http.MethodHead
	switch c.Proto {
	case "registry", "factory":
		list := strings.HasPrefix(stage, "lock") && strings.HasPrefix(c.Path, "/v2/siderolabs/extensions/blobs/")
		return reads && !strings.HasPrefix(c.Path, "/image/") && (list || !strings.Contains(c.Path, "/blobs/"))
	case "proxmox":
		return reads || strings.HasSuffix(c.Path, "/download-url") // of an existing file: its task says so
	}
	return false // no other request is allowed
}
