// Package simtest is an in-memory [Lab] connected to recast, for tests inside a synctest bubble: a twenty-minute roll
// takes milliseconds. A [Client] is one user of recast: a process that can be killed.
package simtest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"google.golang.org/grpc"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// Lab is a lab and a user's working directory.
type Lab struct {
	*sim.Lab
	Dir     string
	t       testing.TB
	network *network.Network

	canary     *canary
	persistent []content // of the persistent disks in the new lab

	// MachineConfig is the user's files (talos.machineConfigs) of new clients; nil: none.
	MachineConfig func(ctx context.Context, node string) (cluster.Secret, bool, error)

	mu      sync.Mutex
	clients int    // number of clients so far
	rolled  int    // rolls that are done
	killed  []int  // PIDs of clients
	died    string // where the last client to be killed was, for messages
}

type content struct{ serial, sha256 string }

// New starts a lab in memory, locks its schematics, installs the machines and waits until they are Ready. Everything
// ends with the test. An empty lab has no machines and nothing to lock.
func New(t testing.TB, o sim.Options) *Lab {
	t.Helper()
	return bringUp(t, o, false)
}

// NewForeign is New with machines installed by a plain Image Factory, from the schematics
// as in their files: recast has not locked them.
func NewForeign(t testing.TB, o sim.Options) *Lab {
	t.Helper()
	return bringUp(t, o, true)
}

func bringUp(t testing.TB, o sim.Options, foreign bool) *Lab {
	t.Helper()
	o.Network, o.Prefix, o.Registry, o.Factory = network.Memory(), "127.42.7", "127.0.0.1:5000", "127.0.0.1:8080"
	lab, err := sim.New(t.Context(), o)
	must(t, err)
	l := &Lab{Lab: lab, Dir: t.TempDir(), t: t, network: o.Network}
	apidoctest.Check(t, lab.Recorder)
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Errorf("close the lab: %v", err)
		}
	})
	files, err := lab.Files()
	must(t, err)
	l.canary = newCanary(lab, files)
	l.canary.visit(l.Dir)
	t.Cleanup(func() {
		for _, leak := range l.leaks() {
			t.Errorf("leaked: %s", leak)
		}
		if pending := lab.World.PendingFailures(); len(pending) > 0 && !t.Failed() {
			t.Errorf("failures of Proxmox were to happen, and have not: %q", pending)
		}
	})
	for name, content := range files {
		l.Write(name, content)
	}
	if o.Empty {
		must(t, lab.Install(t.Context(), nil))
		return l
	}
	images := map[string]string{}
	for name, e := range l.lockSchematics().Schematics {
		images[name] = e.Schematic
		if foreign {
			images[name] = string(files[e.File])
		}
	}
	must(t, lab.Install(t.Context(), images))
	must(t, lab.WaitReady(t.Context()))
	for serial, sum := range lab.Disks() {
		l.persistent = append(l.persistent, content{serial, sum})
	}
	return l
}

// lockSchematics locks the schematics of the new working directory.
func (l *Lab) lockSchematics() schematics.Lock {
	l.t.Helper()
	// Short pauses cost nothing here, but every poll does.
	l.Replace("recast.yaml", "poll: 200ms", "poll: 2s")
	res, err := l.Client().Lock(l.t.Context(), pipeline.LockOptions{})
	must(l.t, err)
	return res.Lock
}

// Write writes a file of the working directory.
func (l *Lab) Write(name string, content []byte) {
	l.t.Helper()
	path := filepath.Join(l.Dir, name)
	must(l.t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(l.t, os.WriteFile(path, content, 0o600))
}

// Read reads a file of the working directory.
func (l *Lab) Read(name string) []byte {
	l.t.Helper()
	b, err := os.ReadFile(filepath.Join(l.Dir, name))
	must(l.t, err)
	return b
}

// Patch republishes an extension and updates the lock to it.
func (l *Lab) Patch(extension string) {
	l.t.Helper()
	must(l.t, errOf(l.Lab.Patch(l.t.Context(), extension, true)))
	must(l.t, errOf(l.Client().Lock(l.t.Context(), pipeline.LockOptions{Update: true})))
}

// Replace edits a file of the working directory; "" for old removes the file.
func (l *Lab) Replace(name, old, fresh string) {
	l.t.Helper()
	if old == "" {
		must(l.t, os.Remove(filepath.Join(l.Dir, name)))
		return
	}
	text := string(l.Read(name))
	if !strings.Contains(text, old) {
		l.t.Fatalf("%s does not hold %q:\n%s", name, old, text)
	}
	l.Write(name, []byte(strings.ReplaceAll(text, old, fresh)))
}

// EditVM changes a key of a VM as an administrator would.
func (l *Lab) EditVM(id int, key, value string) {
	l.t.Helper()
	must(l.t, l.World.SetConfig("", "pve1", world.ChangeRequest{ID: id, Set: map[string]string{key: value}}))
}

// DefineVM adds a VM.
func (l *Lab) DefineVM(id int, config map[string]string) {
	l.t.Helper()
	must(l.t, l.World.DefineVM("pve1", id, config, nil))
}

// Cordon cordons or uncordons a node, as a person would.
func (l *Lab) Cordon(name string, on bool) {
	l.t.Helper()
	node, err := l.Kube.Node(l.t.Context(), name)
	must(l.t, err)
	node.Spec.Unschedulable = on
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
}

// Budget sets how many of the web server's pods may be missing.
func (l *Lab) Budget(maxUnavailable int32) {
	l.t.Helper()
	o, err := l.Kube.Store().Get(l.t.Context(), store.Budgets(), "default", "web")
	must(l.t, err)
	budget := o.(*policyv1.PodDisruptionBudget).DeepCopy()
	budget.Spec.MaxUnavailable = new(intstr.FromInt32(maxUnavailable))
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Budgets(), budget, store.Main)))
}

// SwapISOs swaps the content of the two ISOs on the shared storage.
func (l *Lab) SwapISOs() { l.swapImages(sim.ISOStorage) }

// swapImages swaps the content of the two images on a storage of pve1.
func (l *Lab) swapImages(storage string) {
	l.t.Helper()
	volumes, err := l.World.Volumes(storage, "pve1")
	if err != nil || len(volumes) != 2 {
		l.t.Fatalf("images %+v, %v", volumes, err)
	}
	a, b := l.World.Media(volumes[0].Volid, "pve1"), l.World.Media(volumes[1].Volid, "pve1")
	bytes := a.Bytes()
	a.Write(b.Bytes())
	b.Write(bytes)
}

// BootsDisks has new machines boot prepared disks, from a storage that every host has.
func (l *Lab) BootsDisks(boot string) {
	l.t.Helper()
	if boot == cluster.BootFromISO {
		return // it is the default
	}
	l.Replace("recast.yaml", "  iso: {", "  boot: "+boot+"\n  disk: {storage: [local]}\n  iso: {")
}

// SurgeNode is the name of every surge node, without its number.
const SurgeNode = "wk-surge"

// AddSurge adds surge nodes to recast.yaml and to the files, and asks for them.
func (l *Lab) AddSurge(count int) {
	l.t.Helper()
	l.allowShape()
	machine, _, _ := strings.Cut(string(l.configOf("wk1")), "\n---\n") // without its data volume
	files, nodes := configFiles{}, ""
	for i := range count {
		name := fmt.Sprintf("%s%d", SurgeNode, i+1)
		files[name] = cluster.Secret(machine)
		nodes += fmt.Sprintf("  - {name: %s, schematic: %s, class: surge, host: pve1, surge: true, vm: {ipconfig: ['ip=127.42.7.%d/24,gw=127.42.7.1']}}\n", name, l.node("wk1").Schematic, 251+i)
	}
	l.Replace("recast.yaml", "nodes:\n", `vmClasses:
  surge: {memory: 4096, cloudinit: fast, nics: [{bridge: vmbr0}], disks: [{slot: scsi0, storage: fast, size: 10G, system: true}]}
nodes:
`+nodes)
	l.Replace("recast.yaml", "roll:\n", fmt.Sprintf("roll:\n  surge: %d\n", count))
	l.MachineConfig = files.read
}

// allowShape makes the pool talos, and gives the token what pools, HA, tags and the order need.
func (l *Lab) allowShape() {
	l.World.AddPool("talos")
	l.allow("Shape", "Sys.Console", "Sys.Modify", "Pool.Allocate", "VM.Allocate")
}

// allow gives recast a role with these privileges, besides its own.
func (l *Lab) allow(role string, privileges ...string) {
	l.World.AddRole(role, privileges...)
	for _, who := range []string{"recast@pve", "recast@pve!lab"} {
		l.World.Grant(world.ACL{Path: "/", Who: who, Role: role, Propagate: true})
	}
}

// configOf is a machine's present configuration.
func (l *Lab) configOf(node string) cluster.Secret {
	l.t.Helper()
	s := valueOf(l.Client().connect(l.t.Context()))(l.t)
	defer s.end()
	return valueOf(s.machines.Talos.MachineConfig(l.t.Context(), l.node(node).Addr))(l.t)
}

// configFiles are a user's files of talos.machineConfigs, by node.
type configFiles map[string]cluster.Secret

func (f configFiles) read(_ context.Context, node string) (cluster.Secret, bool, error) {
	text, found := f[node]
	return text, found, nil
}

// Talosctl is a person's call to a node with Talos' own client and the credentials of the working directory.
func (l *Lab) Talosctl(ctx context.Context, name string, call func(context.Context, *client.Client) error) error {
	if err := l.TalosctlAt(ctx, l.node(name).Addr, call); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// TalosctlAt is Talosctl to the machine at an address.
func (l *Lab) TalosctlAt(ctx context.Context, addr netip.Addr, call func(context.Context, *client.Client) error) error {
	conf, err := clientconfig.Open(filepath.Join(l.Dir, "talosconfig"))
	if err != nil {
		return err
	}
	c, err := l.machinery(ctx, addr, client.WithConfig(conf))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return call(ctx, c)
}

// machinery is Talos' own client of the machine at an address.
func (l *Lab) machinery(ctx context.Context, addr netip.Addr, auth client.OptionFunc) (*client.Client, error) {
	dialer := l.Lab.Client()
	return client.New(ctx, auth, client.WithEndpoints(addr.String()), client.WithGRPCDialOptions(
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) })))
}

// ResetNode is talosctl reset --graceful=false --reboot --system-labels-to-wipe; without
// labels it wipes the whole system disk.
func (l *Lab) ResetNode(ctx context.Context, name string, labels ...string) error {
	req := &machineapi.ResetRequest{Reboot: true}
	for _, label := range labels {
		req.SystemPartitionsToWipe = append(req.SystemPartitionsToWipe, &machineapi.ResetPartitionSpec{Label: label, Wipe: true})
	}
	return l.Talosctl(ctx, name, func(ctx context.Context, c *client.Client) error { return c.ResetGeneric(ctx, req) })
}

// node finds a node of the lab by its name.
func (l *Lab) node(name string) sim.Node {
	l.t.Helper()
	n, found := cluster.Find(l.Nodes, func(n sim.Node) bool { return n.Name == name })
	if !found {
		l.t.Fatalf("the lab has no node %s", name)
	}
	return n
}

// settledDump is the whole world as text once all work in progress has ended, without what
// Proxmox regenerates, the random parts of disks, and internal fields of Nodes.
func (l *Lab) settledDump() string {
	l.t.Helper()
	time.Sleep(time.Minute) // of the bubble
	var b strings.Builder
	b.WriteString(l.World.Dump(l.describe, world.RenewedByProxmox()...))
	for _, n := range l.Nodes {
		node := valueOf(l.Kube.Node(l.t.Context(), n.Name))(l.t)
		fmt.Fprintf(&b, "node %s: cordoned %t, labels %v, taints %v\n", n.Name, node.Spec.Unschedulable, node.Labels, node.Spec.Taints)
	}
	return withoutAttempts(withoutUploads(l.withoutMadeUpUUIDs(b.String())))
}

// withoutUploads removes the random parts of uploads' names, and how many uploads there are of the same file: one whose record a kill
// prevented stays for recast prune.
func withoutUploads(dump string) string {
	dump = regexp.MustCompile(`-[0-9a-f]{16}(\.iso|\.qcow2) `).ReplaceAllString(dump, "$1 ")
	dump = regexp.MustCompile(`(storage isos on "": )\d+ `).ReplaceAllString(dump, "$1")
	return strings.Join(slices.Compact(strings.Split(dump, "\n")), "\n")
}

// withoutAttempts removes from the records what depends on the number of attempts: the number of the replacement, the
// number of writes, the time of the replacement, and unanswered requests of killed processes, which are dropped once
// they can't take effect any more.
func withoutAttempts(dump string) string {
	return regexp.MustCompile(`,"sent":\{[^}]*\}|,"(?:nth|written)":\d+|,"replaced":"[^"]*"`).ReplaceAllString(dump, "")
}

// describe describes a medium. Persistent disks are named by their content, to the byte; of
// system disks the random UUID of EPHEMERAL is omitted.
func (l *Lab) describe(m *world.Media) string {
	for _, p := range l.persistent {
		if m.SHA256() == p.sha256 {
			return "the content of " + p.serial
		}
	}
	return regexp.MustCompile(`EPHEMERAL [0-9a-f-]{36} [0-9a-f-]{36}`).ReplaceAllString(talosapi.Describe(m.Bytes()), "EPHEMERAL")
}

// ofProof is what recast writes into a VM's SMBIOS before it starts a blank machine.
var ofProof = regexp.MustCompile(`,sku=recast[0-9a-f]{32}`)

// withoutMadeUpUUIDs removes the SMBIOS UUIDs that Proxmox generates for VMs without one, and recast's proofs.
func (l *Lab) withoutMadeUpUUIDs(dump string) string {
	dump = ofProof.ReplaceAllString(dump, "")
	return regexp.MustCompile(`smbios1: uuid=[0-9a-f-]{36}`).ReplaceAllStringFunc(dump, func(s string) string {
		for _, n := range l.Nodes {
			if strings.HasSuffix(s, n.UUID) {
				return s
			}
		}
		return "smbios1: made up by Proxmox"
	})
}

// RequireIntact fails the test if a promise about a persistent disk was broken.
func (l *Lab) RequireIntact() {
	l.t.Helper()
	for _, v := range l.World.Violations() {
		l.t.Errorf("promise broken: %s", v)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s%v\nhints %q", where(), err, fault.Hints(err))
	}
}

// where is the lines of tests that led to a failure, the innermost first: a helper needs no t.Helper.
func where() (led string) {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for f, more := frames.Next(); more; f, more = frames.Next() {
		if strings.HasSuffix(f.File, "_test.go") {
			led += fmt.Sprintf("%s:%d: ", filepath.Base(f.File), f.Line)
		}
	}
	return led
}

// errOf is the error of a call whose result does not matter.
func errOf[T any](_ T, err error) error { return err }

// valueOf is the result of a call that must succeed.
func valueOf[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return value
	}
}

// span is the world's own delays for one node in a roll, without overlaps.
type span struct {
	ahead time.Duration // what can be done while the node serves and others are down
	out   time.Duration // the rest, in the transaction's order
}

// busy is how long at least one delay was in progress between two moments.
func busy(delays []record.Delay, from, to time.Time) time.Duration {
	delays = slices.Clone(delays)
	slices.SortFunc(delays, func(a, b record.Delay) int { return a.From.Compare(b.From) })
	var total time.Duration
	for _, d := range delays {
		begin, end := d.From, d.To
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		if begin.Before(end) {
			total += end.Sub(begin)
			from = end
		}
	}
	return total
}

// byNode groups delays by node; those of the run itself, such as its claim's, are under "".
func (l *Lab) byNode(delays []record.Delay) map[string][]record.Delay {
	owner := map[int]string{}
	for _, n := range l.Nodes {
		owner[n.VMID] = n.Name
	}
	for _, vm := range l.World.VMs() {
		if node, ok := strings.CutPrefix(vm.Config["name"], "recast-parking-"); ok {
			owner[vm.ID] = node
		}
	}
	out := map[string][]record.Delay{}
	for _, d := range delays {
		node := d.Node
		for _, id := range d.VMIDs {
			if owner[id] != "" {
				node = owner[id]
			}
		}
		out[node] = append(out[node], d)
	}
	return out
}

// shortest is the minimum duration of a roll with these spans: phase after phase, in each phase in the plan's order, as
// many at a time as the plan allows, and each node prepared as soon as the roll begins.
func shortest(p planning.Plan, spans map[string]span) time.Duration {
	var now, begin time.Duration
	var before planning.Phase
	for work := p.Work(); len(work) > 0; {
		phase := work[0].Phase
		nodes := slices.DeleteFunc(slices.Clone(work), func(n planning.NodePlan) bool { return n.Phase != phase })
		work = work[len(nodes):]
		limit := 1
		if phase == planning.Workers {
			limit = max(1, p.MaxUnavailable)
		}
		beside := p.WorkersBeside && (before == planning.ControlPlanes || before == planning.Workers)
		if !beside {
			begin = now
		}
		now = max(now, inPhase(nodes, begin, limit, max(1, p.PerHost), spans))
		before = phase
	}
	return now
}

func inPhase(nodes []planning.NodePlan, begin time.Duration, limit, perHost int, spans map[string]span) (end time.Duration) {
	free := slices.Repeat([]time.Duration{begin}, limit)
	hosts := map[string][]time.Duration{}
	end = begin
	for _, n := range nodes {
		if hosts[n.Host] == nil {
			hosts[n.Host] = slices.Repeat([]time.Duration{begin}, perHost)
		}
		at := max(slices.Min(free), slices.Min(hosts[n.Host]), spans[n.Node].ahead)
		done := at + spans[n.Node].out
		for _, slots := range [][]time.Duration{free, hosts[n.Host]} {
			slots[slices.Index(slots, slices.Min(slots))] = done
		}
		end = max(end, done)
	}
	return end
}

// criticalPath is the minimum duration of a roll between two moments, given the world's delay for each step. drained is
// when each node's drain began: earlier work can overlap with other nodes.
func (l *Lab) criticalPath(p planning.Plan, from, to time.Time, drained map[string]time.Time) time.Duration {
	delays := l.byNode(l.Recorder.Timeline.Delays())
	spans := map[string]span{}
	for _, node := range slices.Sorted(maps.Keys(drained)) {
		var ahead, out []record.Delay
		for _, d := range delays[node] {
			switch {
			case d.To.Before(from) || d.From.After(to):
			case d.What == "pull" && d.To.Compare(drained[node]) <= 0:
				ahead = append(ahead, d)
			default:
				out = append(out, d)
			}
		}
		spans[node] = span{ahead: busy(ahead, from, to), out: busy(out, from, to)}
	}
	return busy(delays[""], from, to) + shortest(p, spans)
}
