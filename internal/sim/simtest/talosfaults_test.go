package simtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

type talosFault struct {
	o        sim.Options      // zero: one control plane and one worker
	rolls    string           // the rolled node; "": wk1
	strategy cluster.Strategy // "": recreate
	roll     []string         // further settings of the roll
	short    bool             // it is part of make test

	// When it begins, one of these: when a step whose path ends in at starts, or before a
	// server acts on such a call; else before the roll.
	at   string
	call string

	first  func(s *talosScene) // the world before, while the node still runs the wanted build
	begins func(s *talosScene)
	// mends removes the cause after the roll; nil: not needed.
	mends func(s *talosScene)
	// remedy is the manual remedy in the hint; nil: the same command again.
	remedy func(s *talosScene)

	kind   fault.Kind
	code   fault.Code // "": any
	says   []string   // texts in the error, its hints and what it calls safe, all of them; none: the roll succeeds
	stands string     // state of the node afterwards
	spares bool       // a roll that fails leaves the VM as it was, in the same boot
	parks  bool       // an old system disk is parked in the end although it is upgraded in place
	noted  string     // a message to the user during the roll
}

type talosScene struct {
	*talosFault
	*Lab
	t      *testing.T
	client *Client                           // of the roll
	route  atomic.Pointer[map[string]string] // redirected addresses
	kept   map[string][]byte                 // original files, by name
	was    cluster.Secret                    // a machine's original configuration
	heard  []string
	struck atomic.Bool // the fault has begun

	interrupt context.CancelFunc // ends the context of the roll
}

func (f *talosFault) run(t *testing.T) {
	o := f.o
	if o.ControlPlanes == 0 {
		o = oneWorker()
		o.TalosVersion = f.o.TalosVersion
	}
	f.rolls = cmp.Or(f.rolls, "wk1")
	f.strategy = cmp.Or(f.strategy, cluster.Recreate)
	s := &talosScene{talosFault: f, t: t, Lab: New(t, o), kept: map[string][]byte{}}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	s.interrupt = interrupt
	s.client = s.as(firstRun)
	s.client.Reroute = s.rerouted
	s.setRoll(append(f.roll, "strategy: "+string(f.strategy))...)
	if f.first != nil {
		f.first(s)
	}
	var was machineState
	if f.spares {
		was = s.machineState()
	}
	s.Patch(everywhere)
	members := s.memberIDs()
	s.strike()
	err := inTime(ctx, t, s.client.roll(s.only()))
	s.Recorder.Hooks(nil, nil)
	require(t, s.struck.Load(), "the fault did not strike: no step %q started, and no call %q came", s.at, s.call)
	s.requireSaid(err)
	for name, content := range s.kept {
		s.Write(name, content)
	}
	requireSame(t, f.stands, s.stand(), "%s afterwards (-want +got)", f.rolls)
	s.RequireIntact()
	if f.spares && err != nil {
		requireSame(t, was, s.machineState(), "the machine is not as it was (-before +now)")
	}
	if f.mends != nil {
		f.mends(s)
	}
	if f.remedy != nil {
		f.remedy(s)
	} else if err != nil {
		must(t, s.as(secondRun).roll(s.only())(t.Context()))
	}
	s.requireWell(members)
}

func (s *talosScene) rolled() sim.Node      { return s.Lab.node(s.rolls) }
func (s *talosScene) only() planning.Policy { return policyFor(s.rolls) }

func (s *talosScene) strike() {
	switch {
	case s.at != "":
		begin := whenStarted(s.at, func() { s.struck.Store(true); s.begins(s) })
		s.client.Emit = func(e step.Event) { begin(e); s.hear(e) }
		return
	case s.call != "":
		s.Recorder.Hooks(func(c record.Call) error {
			if strings.HasSuffix(c.Path+" "+c.Method, s.call) && s.struck.CompareAndSwap(false, true) {
				s.begins(s)
			}
			return nil
		}, nil)
	default: // without begins, the fault is that of the world before
		s.struck.Store(true)
		if s.begins != nil {
			s.begins(s)
		}
	}
	s.client.Emit = s.hear
}

func (s *talosScene) hear(e step.Event) {
	if e.Status == step.Note {
		s.heard = append(s.heard, e.Text)
	}
}

func (s *talosScene) keep(name string) { s.kept[name] = s.Read(name) }

func (s *talosScene) requireSaid(err error) {
	all := fmt.Sprint(err) + "\n" + strings.Join(slices.Concat(fault.Hints(err), fault.Safe(err)), "\n")
	require(s.t, (err != nil) == (len(s.says) > 0) && fault.KindOf(err) == s.kind && (s.code == "" || fault.CodeOf(err) == s.code),
		"kind %d, want %d, code %s; it was to say %q:\n%s", fault.KindOf(err), s.kind, fault.CodeOf(err), s.says, all)
	requireSays(s.t, all, s.says...)
	requireSays(s.t, strings.Join(s.heard, "\n"), s.noted)
}

func (s *talosScene) stand() string {
	out := []string{map[bool]string{true: "on", false: "off"}[s.vm(s.rolled().VMID).Running]}
	for _, open := range valueOf(s.as(thirdRun).Status(s.t.Context()))(s.t).Open {
		if open.Node == s.rolls {
			out = append(out, "its old disk parked")
		}
	}
	if k, err := s.Kube.Node(s.t.Context(), s.rolls); err == nil && k.Spec.Unschedulable {
		out = append(out, "cordoned")
	}
	return strings.Join(out, ", ")
}

func (s *talosScene) requireWell(members map[string]string) {
	requireDrift(s.t, s.Lab, s.others(s.rolls)...)
	s.Lab.requireWell(s.rolls, map[bool]int{true: 1, false: 0}[s.parks || s.strategy != cluster.InPlace], members)
}

// requireWell requires a node to serve in a healthy cluster. Of etcd's members only its own may be another one.
func (l *Lab) requireWell(node string, kept int, members map[string]string) {
	l.requireServing(node)
	l.requireKept(kept)
	l.RequireIntact()
	now := l.memberIDs()
	for name, id := range members {
		require(l.t, now[name] != "" && (now[name] == id || name == node), "member %s was %s, is %q", name, id, now[name])
	}
	require(l.t, len(now) == len(members), "members of etcd before: %v, now: %v", members, now)
}

func (s *talosScene) recovered() {
	must(s.t, s.as(secondRun).giveUp(s.rolls)(s.t.Context()))
	s.requireServing(s.rolls)
	s.again()
}

func (s *talosScene) again() {
	s.Patch(everywhere)
	must(s.t, s.as(thirdRun).roll(s.only())(s.t.Context()))
}

type machineState struct {
	Config map[string]string
	Boot   string
}

// machineState is the machine's state that a failed drain must not change.
func (s *talosScene) machineState() machineState {
	return machineState{Config: maps.Clone(s.vm(s.rolled().VMID).Config), Boot: s.machine(s.rolls).BootID}
}

// TestTalosFaults: a roll ends in time, says what a person needs to know, loses nothing, and the remedy ends in sync.
func TestTalosFaults(t *testing.T) {
	for name, f := range talosFaults() {
		t.Run(name, func(t *testing.T) {
			if !f.short {
				long(t)
			}
			t.Attr("sum:talos-faults", "1")
			inBubble(t, f.run)
		})
	}
}

func eachFault(t *testing.T, faults map[string]*talosFault) {
	eachInBubble(t, faults, func(t *testing.T, f *talosFault) { f.run(t) })
}

// TestDrainFaults plays each fault in its own world, for a node that is recreated and for one that is upgraded in
// place: the roll says which pod or volume blocks it and why, the VM is not touched before all are gone, and after
// the fault the same command ends in sync.
func TestDrainFaults(t *testing.T) {
	faults := 0
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.InPlace} {
		for name, f := range drainFaults(strategy) {
			if testing.Short() && !(f.short && strategy == cluster.Recreate) {
				continue
			}
			faults++
			t.Run(string(strategy)+"/"+name, func(t *testing.T) { inBubble(t, f.run) })
		}
	}
	t.Attr("drain-faults", fmt.Sprint(faults))
}

// TestCtrlCInADrain leaves a cordoned, complete node, from which the next roll continues with the remaining pods.
func TestCtrlCInADrain(t *testing.T) {
	long(t)
	faults := map[string]*talosFault{}
	for s, step := range drainSteps {
		faults[string(s)] = &talosFault{
			strategy: s, first: deployed(stubborn), mends: later,
			at: step, begins: meanwhile(10*time.Second, func(s *talosScene) { s.interrupt() }),
			kind: fault.Interrupted, says: []string{"context canceled"}, stands: leftCordoned(s), spares: true,
		}
	}
	eachFault(t, faults)
}

func (l *Lab) toRack(name, rack string) {
	node := l.kubeNode(name)
	node.Labels["rack"] = rack
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
}

// TestMetadataOfTheSameNode: changes of a Node during its roll are kept; a new Node gets the old one's metadata.
func TestMetadataOfTheSameNode(t *testing.T) {
	long(t)
	racked := func(meanwhile func(*talosScene), want string) *talosFault {
		return &talosFault{
			first: func(s *talosScene) { s.toRack("wk1", "a") }, at: "bring-up/start", begins: meanwhile, stands: untouched,
			mends: func(s *talosScene) { requireSame(s.t, want, s.kubeNode("wk1").Labels["rack"], "rack (-want +got)") },
		}
	}
	eachFault(t, map[string]*talosFault{
		"someone moves it to another rack": racked(func(s *talosScene) { s.toRack("wk1", "b") }, "b"),
		"someone deletes it":               racked(forgotten("wk1"), "a"),
	})
}

func breakImage(d talosapi.Defect) func(*talosScene) {
	return func(s *talosScene) { s.BreakImage(s.locked(s.rolls).SchematicID, d) }
}

func breakInstaller(d talosapi.Defect) func(*talosScene) {
	return func(s *talosScene) {
		published(s)
		s.BreakImage(s.locked(s.rolls).Installer, d)
	}
}

func recreated(s *talosScene) {
	s.Replace("recast.yaml", "strategy: in-place", "strategy: recreate")
	must(s.t, s.as(thirdRun).roll(s.only())(s.t.Context()))
}

func patient(s *talosScene) { s.Replace("recast.yaml", "join: 3m", "join: 10m") }
func later(*talosScene)     { time.Sleep(2 * time.Minute) }

func troubled(t talosapi.Trouble) func(*talosScene) {
	return func(s *talosScene) { must(s.t, s.Trouble(s.rolls, t)) }
}

func breakEtcd(f talosapi.EtcdFault, names ...string) func(*talosScene) {
	return func(s *talosScene) { s.breakEtcd(f, names...) }
}

func switchedOff(s *talosScene) { must(s.t, s.World.PowerOff(s.rolled().VMID)) }
func poweredOn(s *talosScene)   { must(s.t, s.World.PowerOn(s.rolled().VMID)) }

func switchedOn(s *talosScene) {
	n := s.rolled()
	s.done(s.World.Start("root@pam", n.Host, n.VMID))
	later(s)
}

func restarted(s *talosScene) {
	n := s.rolled()
	s.done(s.World.Reset("root@pam", n.Host, n.VMID))
}

// joinedAnew deletes the node's etcd data, as doctor advises too, and continues.
func joinedAnew(s *talosScene) {
	said := problems(diagnosis(s.t, s.Client()))
	require(s.t, slices.Contains(said, "Talos: etcd: cp2 is a learner: it does not vote yet"), "doctor says %q", said)
	s.reset(s.rolls, "EPHEMERAL")
	must(s.t, s.as(secondRun).roll(s.only())(s.t.Context()))
}

func inTurn(acts ...func(*talosScene)) func(*talosScene) {
	return func(s *talosScene) {
		for _, act := range acts {
			act(s)
		}
	}
}

func published(s *talosScene) { must(s.t, s.Client().Publish(s.t.Context())) }

func newVersion(s *talosScene) {
	s.Replace("recast.yaml", "version: "+s.o.TalosVersion, "version: "+sim.TalosVersion)
	must(s.t, errOf(s.Client().Lock(s.t.Context(), pipeline.LockOptions{Update: true})))
}

func (s *talosScene) isoOf(version string) *world.Media {
	volumes := valueOf(s.World.Volumes(sim.ISOStorage, "pve1"))(s.t)
	for _, v := range volumes {
		media := s.World.Media(v.Volid, "pve1")
		img, err := artefact.ReadISO(media.Bytes())
		if err == nil && img.TalosVersion == version && len(img.Extensions) > 1 {
			return media
		}
	}
	s.t.Fatalf("no ISO of %s among %+v", version, volumes)
	return nil
}

func oldISO(s *talosScene) {
	published(s)
	newVersion(s)
	published(s)
	s.isoOf(sim.TalosVersion).Write(s.isoOf(s.o.TalosVersion).Bytes())
}

func freshISO(s *talosScene) {
	for _, v := range valueOf(s.World.Volumes(sim.ISOStorage, "pve1"))(s.t) {
		if strings.Contains(v.Volid, "-"+sim.TalosVersion+"-") {
			s.done(s.World.DeleteVolume("", "pve1", v.Volid))
		}
	}
	published(s)
}

func led(to string) func(*talosScene) {
	return func(s *talosScene) { s.lead(s.rolled().Addr.String(), to) }
}

func (s *talosScene) lead(addr, to string) {
	s.route.Store(new(map[string]string{addr: s.Lab.node(to).Addr.String()}))
}

func straight(s *talosScene) { s.route.Store(nil) }

func certified(addr string, machines ...string) func(*talosScene) {
	return func(s *talosScene) {
		for _, m := range machines {
			s.reconfigure(m, "certSANs: []", "certSANs: ["+addr+"]")
		}
	}
}

func (l *Lab) reconfigure(node, old, fresh string) {
	config := l.configOf(node)
	edited := bytes.ReplaceAll(config, []byte(old), []byte(fresh))
	mustBe(l.t, !bytes.Equal(edited, config), "nothing of the configuration of %s is changed", node)
	l.apply(node, edited)
}

func (l *Lab) apply(node string, config []byte) {
	l.talosctl(node, func(ctx context.Context, c *client.Client) error {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_STAGED})
		return errors.Join(err, c.Reboot(ctx))
	})
	time.Sleep(2 * time.Minute)
}

func renamed(node, from, to string) func(*talosScene) {
	return func(s *talosScene) { s.reconfigure(node, "hostname: "+from, "hostname: "+to) }
}

// expiring is a talosconfig whose certificate expires after life.
func expiring(life time.Duration) func(*talosScene) {
	return func(s *talosScene) {
		b := s.Talos.Secrets
		pair, err := secrets.NewAdminCertificateAndKey(time.Now().Add(-time.Hour), b.Certs.OS, role.MakeSet(role.Admin), life+time.Hour)
		must(s.t, err)
		s.keep("talosconfig")
		s.editTalosconfig(func(c *clientconfig.Context) {
			c.Crt, c.Key = base64.StdEncoding.EncodeToString(pair.Crt), base64.StdEncoding.EncodeToString(pair.Key)
		})
	}
}

func (s *talosScene) editTalosconfig(edit func(*clientconfig.Context)) {
	conf := valueOf(clientconfig.FromBytes(s.Read("talosconfig")))(s.t)
	edit(conf.Contexts[conf.Context])
	s.Write("talosconfig", valueOf(conf.Bytes())(s.t))
}

// virtual is an endpoint that moves between the control planes.
const virtual = "127.42.7.9"

func virtualEndpoint(s *talosScene) {
	certified(virtual, "cp2", "cp3")(s)
	s.keep("talosconfig")
	s.editTalosconfig(func(c *clientconfig.Context) { c.Endpoints = []string{virtual} })
	s.lead(virtual, "cp2")
}

func (s *talosScene) rerouted(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if routes := s.route.Load(); err == nil && routes != nil && (*routes)[host] != "" {
		return net.JoinHostPort((*routes)[host], port)
	}
	return addr
}

// alien attaches a disk on which Talos was once installed.
func alien(s *talosScene) {
	id := s.rolled().VMID
	s.EditVM(id, "scsi5", sim.DiskStorage+":1,serial=alien")
	disk := artefact.Disk{Partitions: []artefact.Partition{{Label: "META", UUID: "alien"}}}
	s.media(volidOf(s.Lab, id, "scsi5")).Write(artefact.WriteDisk(disk))
}

func unplugged(s *talosScene) {
	id := s.rolled().VMID
	s.EditVM(id, "protection", "0")
	for _, key := range []string{"scsi5", "unused0"} {
		s.configure(world.ChangeRequest{ID: id, Delete: []string{key}})
	}
}

// installedBy installs that node's image beside the running system, as a person would.
func installedBy(of string) func(*talosScene) {
	return func(s *talosScene) { s.installBy(s.t, s.rolls, s.locked(of).Installer) }
}

func rebooted(s *talosScene) {
	s.talosctl(s.rolls, func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
	time.Sleep(2 * time.Minute)
}

// usurped is a worker with cp2's configuration and so its name, in Kubernetes and etcd.
func usurped(s *talosScene) {
	s.was = s.configOf("wk2")
	impostor(s.t, s.Lab, "cp2", "wk2")
}

func unnoticed(s *talosScene) {
	s.Lab.Kube.NodeDown(s.Lab.node("wk2").UUID)
	forgotten("cp2")(s)
}

func forgotten(node string) func(*talosScene) { return dropped(store.Nodes(), "", node) }

// restored gives that worker its own configuration back, and removes it as cp2 from etcd.
func restored(s *talosScene) {
	s.apply("wk2", s.was)
	for _, m := range s.EtcdMembers() {
		if m.Name == "cp2" {
			s.removeMember(m.ID)
		}
	}
}

func meanwhile(d time.Duration, act func(*talosScene)) func(*talosScene) {
	return func(s *talosScene) { time.AfterFunc(d, func() { act(s) }) }
}

func dropped(r schema.GroupVersionResource, namespace, name string) func(*talosScene) {
	return func(s *talosScene) { without(r, namespace, name)(s.Lab) }
}

// shop is a workload of one pod, on the rolled node.
func shop(*appsv1.Deployment) {}

// stubborn has a process that ignores SIGTERM.
func stubborn(d *appsv1.Deployment) {
	d.Spec.Template.Spec.Containers[0].Command = []string{"sleep", "infinity"}
}

// guarded has pods with a program's finalizer.
func guarded(d *appsv1.Deployment) { d.Spec.Template.Finalizers = []string{"example.com/guard"} }

func inNamespace(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Namespace = name }
}

func podsOf(app string) corev1.PodTemplateSpec { return daemonSet("", app, onePod(app)).Spec.Template }

func selecting(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func deployed(edits ...func(*appsv1.Deployment)) func(*talosScene) {
	return func(s *talosScene) {
		d := deployment(corev1.NamespaceDefault, "shop", map[string]string{"app": "shop"}, onePod("shop"))
		for _, edit := range edits {
			edit(d)
		}
		if d.Namespace != corev1.NamespaceDefault {
			s.put(store.Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.Namespace}})
		}
		s.put(store.Deployments(), d)
		time.Sleep(20 * time.Second)
	}
}

func stateful(s *talosScene) {
	s.put(store.StatefulSets(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: corev1.NamespaceDefault},
		Spec:       appsv1.StatefulSetSpec{Selector: selecting("db"), Template: podsOf("db")},
	})
	time.Sleep(20 * time.Second)
}

func bare(s *talosScene) {
	spec, meta := onePod("bare"), metav1.ObjectMeta{Name: "bare", Namespace: corev1.NamespaceDefault}
	spec.NodeName = s.rolls
	s.put(store.Pods(), &corev1.Pod{ObjectMeta: meta, Spec: spec})
}

func gone(pod string) func(*talosScene) {
	return func(s *talosScene) {
		dropped(store.Pods(), corev1.NamespaceDefault, pod)(s)
		time.Sleep(5 * time.Second)
	}
}

// unguarded removes the finalizer from the pods.
func unguarded(s *talosScene) {
	update := func(r schema.GroupVersionResource, o store.Object) {
		must(s.t, errOf(s.Kube.Store().Update(s.t.Context(), r, o, store.Main)))
		time.Sleep(5 * time.Second)
	}
	d := s.stored(store.Deployments(), corev1.NamespaceDefault, "shop").(*appsv1.Deployment).DeepCopy()
	d.Spec.Template.Finalizers = nil
	update(store.Deployments(), d)
	for _, p := range s.allStored(store.Pods(), corev1.NamespaceDefault) {
		p := p.(*corev1.Pod).DeepCopy()
		p.Finalizers = nil
		update(store.Pods(), p)
	}
}

func budgeted(name string) func(*talosScene) {
	return func(s *talosScene) {
		s.put(store.Budgets(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceDefault},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1)), Selector: selecting("shop")},
		})
		time.Sleep(5 * time.Second)
	}
}

func unbudgeted(name string) func(*talosScene) {
	return dropped(store.Budgets(), corev1.NamespaceDefault, name)
}

func kubeletDies(s *talosScene) { s.Kube.NodeDown(s.rolled().UUID) }

func apiAway(s *talosScene) {
	s.Recorder.Hooks(func(c record.Call) error {
		if c.Proto == "kubernetes" {
			return errors.New("connection reset by peer")
		}
		return nil
	}, nil)
}

func apiBack(s *talosScene) { s.Recorder.Hooks(nil, nil) }

// asUserWithout is a kubeconfig of a user who may do everything except create that resource.
func asUserWithout(resource string) func(*talosScene) {
	return func(s *talosScene) {
		s.Kube.Grant("recast", func(r kubeapi.Request) bool { return r.Resource != resource })
		s.useKubeconfig("recast", time.Hour)
	}
}

func expiringKubeconfig(life time.Duration) func(*talosScene) {
	return func(s *talosScene) { s.useKubeconfig("system:masters", life) }
}

func (s *talosScene) useKubeconfig(group string, life time.Duration) {
	s.keep("kubeconfig")
	s.Write("kubeconfig", valueOf(s.Kubeconfig(group, life))(s.t))
}

// podDisk attaches a volume to the VM as a CSI driver does.
func podDisk(s *talosScene) {
	must(s.t, s.World.AddLUN("fast", "pve1", "9999/vm-9999-pvc-0b5f.raw", 1<<30, world.NewMedia(nil)))
	s.EditVM(s.rolled().VMID, "scsi7", "fast:9999/vm-9999-pvc-0b5f.raw")
	proxmoxVolume("9999/vm-9999-pvc-0b5f.raw")(s.Lab)
}

func podDiskGone(s *talosScene) {
	s.configure(world.ChangeRequest{ID: s.rolled().VMID, Delete: []string{"scsi7"}})
}

// podDiskFreed deletes its claim.
func podDiskFreed(s *talosScene) {
	s.done(s.World.DeleteVolume("", "pve1", "fast:9999/vm-9999-pvc-0b5f.raw"))
}

// claimed is a volume of a CSI driver, with its claim's name.
func (s *talosScene) claimed(name, claim, driver, handle string, modes ...corev1.PersistentVolumeAccessMode) {
	s.put(store.Volumes(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            modes,
			ClaimRef:               &corev1.ObjectReference{Namespace: corev1.NamespaceDefault, Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}},
		},
	})
}

// attached is a volume that its driver can't detach.
func attached(s *talosScene) {
	s.claimed("pv-1", "data", "csi.example.com", "disk-1")
	s.put(store.Attachments(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "stuck"},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "csi.example.com", NodeName: s.rolls, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv-1")}},
		Status: storagev1.VolumeAttachmentStatus{
			Attached: true, DetachError: &storagev1.VolumeError{Message: "rpc error: code = Internal desc = disk is busy"},
		},
	})
}

// agent is a DaemonSet whose pod uses a volume that its driver shares among nodes.
func agent(s *talosScene) {
	s.claimed("pv-2", "agent", "cephfs.csi.ceph.com", "0001-0009-agent", corev1.ReadWriteMany)
	s.put(store.Claims(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: corev1.NamespaceDefault}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-2"},
	})
	pod := onePod("agent")
	pod.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "agent"},
	}}}
	s.put(store.DaemonSets(), daemonSet(corev1.NamespaceDefault, "agent", pod))
	time.Sleep(20 * time.Second)
	c := s.session()
	defer c.end()
	volumes := valueOf(c.machines.Kube.AttachedVolumes(s.t.Context(), s.rolls))(s.t)
	require(s.t, len(volumes) == 1 && strings.HasPrefix(volumes[0].User, "DaemonSet pod default/agent-"),
		"attached: %+v", volumes)
}

// hooked has a webhook that denies changes of these resources.
func hooked(resources ...string) func(*talosScene) {
	return func(s *talosScene) {
		s.Kube.SetWebhook("hours.example.com", func(r kubeapi.Request) *metav1.Status {
			goes := r.Verb == "delete" || r.Resource == "pods/eviction"
			if !slices.Contains(resources, r.Resource) || !goes || r.Namespace != corev1.NamespaceDefault {
				return nil
			}
			return &metav1.Status{Code: http.StatusForbidden, Message: "not during trading hours", Reason: metav1.StatusReasonForbidden}
		})
	}
}

func unhooked(s *talosScene) { s.Kube.SetWebhook("", nil) }
