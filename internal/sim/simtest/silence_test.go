package simtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
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

// mute records the requests to machines, and makes the machine that gets the n-th one of a
// kind never answer that kind again.
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

// during makes the machines behave like that while do runs.
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

// silentVerb is a command that changes a node.
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

// at silences a machine, and checks how the command ends, and that the same one succeeds
// once the machine answers again.
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
	t.Helper()
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
	t.Helper()
	named := slices.ContainsFunc(l.Nodes, func(n sim.Node) bool {
		return n.VMID == vmid && (strings.Contains(said, n.Name) || strings.Contains(said, n.Addr.String()))
	})
	says := silentCalls()[what]
	require(t, named && says != "" && strings.Contains(said, says) && strings.Contains(said, "gave up"),
		"VM %d does not answer %s (%q), and this is said:\n%s", vmid, what, says, said)
}

var machineStatus = rpc{"/cosi.resource.State/Get", runtime.MachineStatusType}

// silentCalls is all of recast's requests to machines, with their names in errors.
func silentCalls() map[rpc]string {
	calls := map[rpc]string{
		connection:                                            "connection",
		{"/machine.MachineService/Version", ""}:               "read Talos version",
		{"/machine.MachineService/Read", ""}:                  "read /",
		{"/machine.MachineService/EtcdMemberList", ""}:        "list etcd's members",
		{"/machine.MachineService/EtcdStatus", ""}:            "read etcd's status",
		{"/machine.MachineService/EtcdAlarmList", ""}:         "list etcd's alarms",
		{"/machine.MachineService/EtcdSnapshot", ""}:          "read etcd's snapshot",
		{"/machine.MachineService/EtcdForfeitLeadership", ""}: "hand etcd's leadership over",
		{"/machine.MachineService/EtcdLeaveCluster", ""}:      "leave etcd",
		{"/machine.MachineService/EtcdRecover", ""}:           "upload the snapshot",
		{"/machine.MachineService/Bootstrap", ""}:             "begin with ",
		{"/machine.MachineService/ServiceList", ""}:           "list the services",
		{"/machine.MachineService/ApplyConfiguration", ""}:    "apply",
		{"/machine.MachineService/Reboot", ""}:                "reboot",
		{"/machine.MachineService/Rollback", ""}:              "roll back",
		{"/machine.MachineService/Upgrade", ""}:               "install",
		{"/machine.MachineService/List", ""}:                  "list /",
		{"/machine.ImageService/Pull", ""}:                    "pull ",
		{"/machine.LifecycleService/Upgrade", ""}:             "install ",
	}
	for _, r := range []string{
		"SystemInformations.hardware.talos.dev", "HostnameStatuses.net.talos.dev", "Nodenames.kubernetes.talos.dev", "MachineTypes.config.talos.dev", "MachineStatuses.runtime.talos.dev",
		"UnattendedInstallStatuses.runtime.talos.dev", "SecurityStates.talos.dev", "BootIDs.runtime.talos.dev", "BootedEntries.talos.dev", "KernelCmdlines.runtime.talos.dev",
		"SystemDisks.block.talos.dev", "BootstrapManifestsConfigs.kubernetes.talos.dev", "KubeletSpecs.kubernetes.talos.dev", "Services.v1alpha1.talos.dev",
	} {
		calls[rpc{"/cosi.resource.State/Get", r}] = "read " + r
	}
	for _, r := range []string{
		"APIServerConfigs.kubernetes.talos.dev", "ControllerManagerConfigs.kubernetes.talos.dev", "SchedulerConfigs.kubernetes.talos.dev",
		"AddressSpecs.net.talos.dev", "AddressStatuses.net.talos.dev", "DiscoveredVolumes.block.talos.dev", "DNSUpstreams.net.talos.dev", "Disks.block.talos.dev", "ExtensionStatuses.runtime.talos.dev", "MachineConfigs.config.talos.dev", "LinkStatuses.net.talos.dev", "Members.cluster.talos.dev", "OperatorSpecs.net.talos.dev", "RouteStatuses.net.talos.dev", "VolumeStatuses.block.talos.dev",
	} {
		calls[rpc{"/cosi.resource.State/List", r}] = "list " + r
	}
	return calls
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
		verbs["recover "+node] = silentVerb{o: o, node: node, stale: true, prepare: halfway(node), do: (*Client).giveUp}
		verbs["rollback "+node] = silentVerb{o: o, node: node, kept: 1, stale: true, prepare: rolledBefore(node), do: func(c *Client, node string) func(context.Context) error { return c.goBack(node) }}
		for s, kept := range map[cluster.Strategy]int{cluster.Recreate: 1, cluster.Reimage: 1, cluster.InPlace: 0} {
			stale := all(strategy(s), func(l *Lab) { l.Patch(everywhere) })
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

// halfway is a node that has lost its VM to a killed roll.
func halfway(node string) edit {
	return func(l *Lab) {
		l.Patch(everywhere)
		l.as(firstRun).rollKilled(after("delete-vm"), policyFor(node))
	}
}

func rolledBefore(node string) edit {
	return func(l *Lab) {
		l.Patch(everywhere)
		l.as(firstRun).mustRoll(policyFor(node))
	}
}

// silentReads are the commands that change nothing; all of a command's cells share a
// world. Their results count as output besides the error.
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
const (
	longestRoll = 30 * time.Minute
	longestRead = 3 * time.Minute
)

// inTime fails the test if do exceeds longestRoll.
func inTime(ctx context.Context, t *testing.T, do func(context.Context) error) error {
	t.Helper()
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

// readSilently silences a machine for each request in turn, in one world. If another
// machine is asked instead, the output must be as usual.
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

// slowRoll is one node that is rolled while an API is slow.
type slowRoll struct {
	node     string
	strategy cluster.Strategy
}

func (s slowRoll) String() string { return fmt.Sprintf("%s %s", s.strategy, s.node) }

// play rolls the node, calls strike at the beginning of each step, and returns the final world.
func (s slowRoll) play(t *testing.T, secrets *talosapi.Cluster, strike func(l *Lab, c *Client)) (dump string, own *talosapi.Cluster) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := New(t, sim.Options{ControlPlanes: 3, Workers: 1, Talos: secrets})
		l.setRoll("strategy: " + string(s.strategy))
		l.Patch(everywhere)
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

func slowStrikes() map[string]func(l *Lab, c *Client) {
	strikes := map[string]func(l *Lab, c *Client){"refused": func(_ *Lab, c *Client) {
		c.Cut()
		time.AfterFunc(slowFor, c.Mend)
	}}
	for _, server := range sim.SlowServers {
		strikes["slow "+server] = func(l *Lab, _ *Client) { must(l.t, l.Slow(server, slowFor)) }
	}
	return strikes
}

// TestSlowServers: while an API is slow, or refuses every connection, for a minute at every single step of a node, no
// step fails, and the final world is that of an undisturbed roll.
func TestSlowServers(t *testing.T) {
	rolls := []slowRoll{{"wk1", cluster.Recreate}, {"cp2", cluster.Recreate}, {"wk1", cluster.InPlace}, {"cp2", cluster.InPlace}}
	for _, s := range rolls {
		ref := sync.OnceValues(func() (string, *talosapi.Cluster) { return s.play(t, nil, func(*Lab, *Client) {}) })
		for name, strike := range slowStrikes() {
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
