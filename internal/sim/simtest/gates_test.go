package simtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/checkup"
)

var longhornVolumes = store.Resource{
	GroupVersionResource: schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "volumes"},
	Kind:                 "Volume", Namespaced: true, Status: true,
}

// volumeGate is a gate about volumes, with a timeout of two minutes.
const volumeGate = "gates: [{apiVersion: longhorn.io/v1beta2, kind: Volume, timeout: 2m, expr: status.robustness == 'healthy'}]"

// installLonghorn serves Longhorn's kinds, without any objects on nodes.
func (l *Lab) installLonghorn() {
	for _, r := range longhornKinds {
		l.Kube.Define(r)
	}
}

func (l *Lab) volume(name, robustness string) {
	l.t.Helper()
	u := object(longhornVolumes, "longhorn-system", name, map[string]any{"status": map[string]any{"state": "attached", "robustness": robustness}})
	if _, err := l.Kube.Store().Get(l.t.Context(), longhornVolumes.GroupVersionResource, "longhorn-system", name); err != nil {
		l.put(longhornVolumes.GroupVersionResource, u)
		return
	}
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), longhornVolumes.GroupVersionResource, u, store.Status)))
}

// gated is a lab with stale workers, one volume, and that gate.
func gated(t *testing.T, lab *Lab, gate string) {
	t.Helper()
	lab.installLonghorn()
	lab.volume("pvc-1", "healthy")
	lab.setRoll(gate, "storage: off")
	lab.Patch(sim.PatchedExtension)
}

func notes(suffix string, into *[]string) func(step.Event) {
	return func(e step.Event) {
		if e.Status == step.Note && strings.HasSuffix(e.Path, "/"+suffix) {
			*into = append(*into, e.Text)
		}
	}
}

// The storage rebuilds once the node is back, and the next node waits for that. Meanwhile
// no API answers for a while, which is retried.
func TestGateHoldsTheNextNodeBack(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		gated(t, lab, volumeGate)
		c := lab.Client()
		var said []string
		var healthy, next time.Time
		c.Emit = allOf(
			notes("ask-gates-again", &said),
			whenStarted("wk1/take-down", func() { lab.volume("pvc-1", "degraded") }),
			whenStarted("wk1/ask-gates-again", func() {
				time.AfterFunc(10*time.Second, c.Cut)
				time.AfterFunc(70*time.Second, c.Mend)
				time.AfterFunc(90*time.Second, func() { healthy = time.Now(); lab.volume("pvc-1", "healthy") })
			}),
			whenStarted("wk2/take-down", func() { next = time.Now() }),
		)
		must(t, c.roll(planning.Policy{})(t.Context()))
		require(t, len(said) >= 2 && strings.HasSuffix(said[0], "1 of 1: longhorn-system/pvc-1: status.robustness=degraded") && strings.Contains(said[1], "no answer from https://"),
			"said %q", said)
		require(t, !healthy.IsZero() && !next.Before(healthy), "healthy at %s, the next node went at %s", healthy, next)
		requireInSync(t, lab)
	})
}

// A gate that stays closed stops the roll after the finished node, and the next roll before the next node is touched.
func TestGateStopsTheRollAfterANode(t *testing.T) {
	eachLong(t, sim.Options{Workers: 2}, storiesOf(cluster.Recreate, cluster.InPlace), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		gated(t, lab, volumeGate)
		lab.setRoll("strategy: " + string(s))
		c := lab.Client().hears(whenStarted("wk1/gate", func() { lab.volume("pvc-1", "degraded") }))
		err := c.roll(planning.Policy{})(t.Context())
		const want = `roll/canary/wk1/ask-gates-again: wk1 is done and takes pods, but no other node is to follow: gate "longhorn.io/v1beta2 Volume": gave up after 2m0s; last seen: 1 of 1: `
		requireFault(t, err, fault.Failed, want)
		requireDrift(t, lab, "wk2")
		requireNoClaim(t, lab)
		lab.requireServing("wk1")

		seen, start := lab.watchOutage(), time.Now()
		err = lab.second().roll(planning.Policy{})(t.Context())
		requireRefused(t, err, `roll/workers/wk2/ask-gates: gate "longhorn.io/v1beta2 Volume": gave up after 2m0s; last seen: 1 of 1: longhorn-system/pvc-1: status.robustness=degraded: `)
		took := time.Since(start)
		require(t, took >= 2*time.Minute && len(seen.order) == 0, "after %s; was out: %q", took, seen.order)
		requireNoClaim(t, lab)
		requireDrift(t, lab, "wk2")

		lab.volume("pvc-1", "healthy")
		lab.as(thirdRun).rollTo(t, planning.Policy{})
	})
}

func TestGateOfWhatIsNotInstalled(t *testing.T) {
	const volumes = "gates: [{apiVersion: longhorn.io/v1beta2, kind: Volume, expr: 'false'"
	type story struct {
		gate string
		crd  bool
		want string // "": it holds
	}
	cases := map[string]story{
		"no such group":        {volumes + "}]", false, "longhorn.io is not installed: the API has no group of that name"},
		"no such version":      {"gates: [{apiVersion: longhorn.io/v1beta1, kind: Volume, expr: 'false'}]", true, "longhorn.io is served as v1beta2, not as v1beta1"},
		"no such kind":         {"gates: [{apiVersion: longhorn.io/v1beta2, kind: Volumes, expr: 'false'}]", true, "longhorn.io/v1beta2 has no kind Volumes, only Engine, Node, Replica, Setting, Volume"},
		"no namespace":         {volumes + ", name: pvc-1}]", true, "longhorn.io/v1beta2 Volume is in a namespace, and the gate names none"},
		"optional, no group":   {volumes + ", optional: true}]", false, ""},
		"no object":            {volumes + ", timeout: 3s}]", true, "gave up after 3s; last seen: there is no such object: context deadline exceeded"},
		"no object, optional":  {volumes + ", optional: true}]", true, ""},
		"no object, by a name": {volumes + ", namespace: longhorn-system, name: pvc-7, timeout: 3s}]", true, "gave up after 3s; last seen: there is no such object: context deadline exceeded"},
	}
	eachLong(t, oneWorker(), cases, func(t *testing.T, lab *Lab, c story) {
		if c.crd {
			lab.installLonghorn()
		}
		lab.setRoll(c.gate)
		lab.Patch(sim.PatchedExtension)
		start := time.Now()
		err := lab.Client().roll(planning.Policy{})(t.Context())
		if c.want == "" {
			must(t, err)
			requireDrift(t, lab)
			return
		}
		require(t, fault.KindOf(err) == fault.Refused && strings.HasSuffix(message(err), ": "+c.want) && time.Since(start) <= time.Minute,
			"after %s, kind %d: %v", time.Since(start), fault.KindOf(err), err)
	})
}

// Ctrl-C ends the wait of a gate at once: nothing is half done.
func TestCtrlCInAGate(t *testing.T) {
	type story struct{ at, stale string }
	cases := map[string]story{
		"before": {at: "wk1/ask-gates", stale: "wk1 wk2"},
		"after":  {at: "wk1/ask-gates-again", stale: "wk2"},
	}
	eachLong(t, sim.Options{Workers: 2}, cases, func(t *testing.T, lab *Lab, tc story) {
		gated(t, lab, volumeGate)
		c := lab.Client()
		var pressed time.Time
		c.Emit = whenStarted(tc.at, func() {
			lab.volume("pvc-1", "faulted")
			time.AfterFunc(20*time.Second, func() { pressed = time.Now(); c.Runner.Stop() })
		})
		_, err := c.Roll(t.Context(), planning.Policy{})
		requireFault(t, err, fault.Interrupted, "status.robustness=faulted: stopped")
		require(t, time.Since(pressed) <= 15*time.Second, "%s later: %v", time.Since(pressed), err)
		requireDrift(t, lab, strings.Fields(tc.stale)...)
		requireNoClaim(t, lab)
	})
}

// A program decides whether the roll may continue. It runs in the directory of
// recast.yaml, and its last output is shown.
func TestGateOfACommand(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Write("check.sh", []byte("#!/bin/sh\necho \"$RECAST_WHEN $RECAST_NODE $RECAST_STRATEGY\" >>asked\necho \"token ${PROXMOX_VE_API_TOKEN-none}\"\ntest -e fine || { echo 'not fine'; exit 3; }\n"))
		must(t, os.Chmod(filepath.Join(lab.Dir, "check.sh"), 0o700))
		lab.setRoll("gates: [{description: it is fine, command: [./check.sh], timeout: 5s}]")
		lab.Patch(sim.PatchedExtension)
		_, err := lab.Client().Roll(t.Context(), planning.Policy{})
		const want = `roll/workers/wk1/ask-gates: gate "it is fine": gave up after 5s; last seen: ./check.sh ended with 3: token none; not fine: context deadline exceeded`
		requireMessage(t, err, fault.Refused, want)
		lab.Write("fine", nil)
		lab.Write("asked", nil)
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireSame(t, "before wk1 recreate\nafter wk1 recreate\n", string(lab.Read("asked")), "asked (-want +got)")
		requireDrift(t, lab)
	})
}

// The plan shows the gates.
func TestPlanShowsGates(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		gated(t, lab, volumeGate)
		plan := lab.plan(planning.Policy{})
		want := []cluster.UserGate{{TimeoutSeconds: 120, Objects: &cluster.ObjectGate{
			APIVersion: "longhorn.io/v1beta2", Kind: "Volume", Expr: "status.robustness == 'healthy'",
		}}}
		requireSame(t, want, plan.Gates, "the plan's gates (-want +got)")
		lab.Replace("recast.yaml", "status.robustness ==", "statu.robustness ==")
		_, err := lab.Client().Plan(t.Context(), planning.Policy{})
		requireFault(t, err, fault.Config, "roll.gates[0].expr: not a valid expression: 1:1: undeclared reference to 'statu'")
	})
}

// Doctor asks every gate about objects once. It looks for the programs of gates and hooks, and runs none.
func TestDoctorAsksGates(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		gated(t, lab, "gates: [{apiVersion: longhorn.io/v1beta2, kind: Volume, expr: status.robustness == 'healthy'}, "+
			"{description: Ceph, apiVersion: ceph.rook.io/v1, kind: CephCluster, expr: 'true'}, {description: it is fine, command: ['false']}, "+
			"{when: before, command: [no-such-program]}, {when: before, command: [./recast.yaml]}, {when: before, command: ['true']}]")
		lab.setRoll("hooks: {beforeNode: [{description: drain the balancer, command: ['false']}], afterRun: [{command: [no-such-hook]}]}")
		said := func(res checkup.Result) (out []string) {
			for _, c := range res.Checks {
				if c.Group == checkup.GroupGates || c.Group == checkup.GroupHooks {
					out = append(out, string(c.State)+" "+c.What+": "+c.Seen)
				}
			}
			return out
		}
		res := diagnosis(t, lab.Client())
		requireSame(t, []string{
			"ok longhorn.io/v1beta2 Volume: holds",
			"problem Ceph: ceph.rook.io is not installed: the API has no group of that name",
			"ok it is fine: a roll runs it before each node, and when it is back",
			`problem no-such-program: exec: "no-such-program": executable file not found in $PATH`,
			fmt.Sprintf("problem ./recast.yaml: exec: %q: permission denied", filepath.Join(lab.Dir, "recast.yaml")),
			"ok true: a roll runs it before each node",
			"ok drain the balancer: a roll runs it before each node",
			`problem no-such-hook: exec: "no-such-hook": executable file not found in $PATH`,
		}, said(res), "doctor says (-want +got)")
		requireFault(t, res.Err(), fault.Refused)
		lab.volume("pvc-1", "degraded")
		got := said(diagnosis(t, lab.Client()))[0]
		require(t, got == "warning longhorn.io/v1beta2 Volume: does not hold: 1 of 1: longhorn-system/pvc-1: status.robustness=degraded",
			"said %q", got)
	})
}

// presetCase is a state of the storage, and the results of the gates in examples/gates.
type presetCase struct {
	Name    string           `json:"name"`
	Objects []map[string]any `json:"objects"`
	Fails   []string         `json:"fails"` // "description: what was seen"
}

func TestGatePresets(t *testing.T) {
	served := []store.Resource{
		longhornNodes, longhornVolumes, longhornReplicas, longhornSettings, cephClusters,
		resource("postgresql.cnpg.io/v1", "clusters", "Cluster", true),
		linstorClusters, linstorSatellites,
	}
	presets := valueOf(filepath.Glob("../../../examples/gates/*.yaml"))(t)
	mustBe(t, len(presets) == 4, "%d presets", len(presets))
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		for _, r := range served {
			lab.Kube.Define(r)
		}
		config := lab.Read("recast.yaml")
		for _, file := range presets {
			gates := lab.preset(file, config)
			var cases []presetCase
			must(t, yaml.UnmarshalStrict(readFile(t, filepath.Join("testdata", "gates", filepath.Base(file))), &cases))
			for _, c := range cases {
				remove := lab.fill(c.Objects, served)
				requireSame(t, c.Fails, lab.failing(gates), "%s: %s (-want +got)", filepath.Base(file), c.Name)
				remove()
			}
		}
		taints := lab.preset("../../../examples/gates/piraeus.yaml", config)[2:] // of nodes, which the lab itself has
		requireNone(t, lab.failing(taints), "without a taint")
		node := lab.kubeNode("wk1")
		node.Spec.Taints = []corev1.Taint{{Key: "drbd.linbit.com/lost-quorum", Effect: corev1.TaintEffectNoSchedule}}
		must(t, errOf(lab.Kube.Store().Update(t.Context(), store.Nodes(), node, store.Main)))
		want := []string{`DRBD has quorum on every node: 1 of 2: wk1: spec.taints=[{"effect":"NoSchedule","key":"drbd.linbit.com/lost-quorum"}]`}
		requireSame(t, want, lab.failing(taints), "gates that fail (-want +got)")
	})
}

func resource(gv, plural, kind string, namespaced bool) store.Resource {
	group, version, _ := strings.Cut(gv, "/")
	return store.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: plural},
		Kind:                 kind, Namespaced: namespaced, Status: true,
	}
}

// preset adds the gates of a file to recast.yaml, and plans with them.
func (l *Lab) preset(file string, config []byte) []cluster.UserGate {
	l.t.Helper()
	b := readFile(l.t, file)
	_, gates, found := strings.Cut(string(b), "\nroll:\n")
	mustBe(l.t, found, "%s has no section roll", file)
	l.Write("recast.yaml", config)
	l.Replace("recast.yaml", "roll:\n", "roll:\n"+gates)
	plan, err := l.Client().Plan(l.t.Context(), planning.Policy{})
	mustBe(l.t, err == nil, "%s: %v", file, err)
	l.Write("recast.yaml", config)
	return plan.Gates
}

// fill creates objects in the cluster; remove deletes them.
func (l *Lab) fill(objects []map[string]any, served []store.Resource) (remove func()) {
	l.t.Helper()
	var undo []func()
	for _, content := range objects {
		u := &unstructured.Unstructured{Object: content}
		for _, r := range served {
			if r.GVK() != u.GroupVersionKind() {
				continue
			}
			l.put(r.GroupVersionResource, u.DeepCopy())
			undo = append(undo, func() { without(r.GroupVersionResource, u.GetNamespace(), u.GetName())(l) })
		}
	}
	mustBe(l.t, len(undo) == len(objects), "%d of %d objects are of a kind that is served", len(undo), len(objects))
	return func() {
		for _, f := range undo {
			f()
		}
	}
}

// failing asks every gate once, and returns the observations of those that don't hold.
func (l *Lab) failing(gates []cluster.UserGate) []string {
	l.t.Helper()
	s := l.session()
	defer s.end()
	var out []string
	for _, g := range gates {
		holds, seen, err := rolling.GateAsker{Objects: s.machines.Objects}.Look(l.t.Context(), g)
		mustBe(l.t, err == nil, "%s: %v", g, err)
		if !holds {
			out = append(out, g.String()+": "+seen)
		}
	}
	return out
}
