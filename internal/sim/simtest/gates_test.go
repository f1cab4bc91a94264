package simtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/checkup"
)

var longhornVolumes = resource("longhorn.io/v1beta2", "volumes", "Volume", true)

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

// The next node waits until the storage has rebuilt. No answer of the API is retried meanwhile.
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
		requireTook(t, start, 2*time.Minute, time.Hour)
		requireNone(t, seen.order, "was out")
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
	eachLong(t, oneWorker(), map[string]story{
		"no such group":        {volumes + "}]", false, "longhorn.io is not installed: the API has no group of that name"},
		"no such version":      {"gates: [{apiVersion: longhorn.io/v1beta1, kind: Volume, expr: 'false'}]", true, "longhorn.io is served as v1beta2, not as v1beta1"},
		"no such kind":         {"gates: [{apiVersion: longhorn.io/v1beta2, kind: Volumes, expr: 'false'}]", true, "longhorn.io/v1beta2 has no kind Volumes, only Engine, Node, Replica, Setting, Volume"},
		"no namespace":         {volumes + ", name: pvc-1}]", true, "longhorn.io/v1beta2 Volume is in a namespace, and the gate names none"},
		"optional, no group":   {volumes + ", optional: true}]", false, ""},
		"no object":            {volumes + ", timeout: 3s}]", true, "gave up after 3s; last seen: there is no such object: context deadline exceeded"},
		"no object, optional":  {volumes + ", optional: true}]", true, ""},
		"no object, by a name": {volumes + ", namespace: longhorn-system, name: pvc-7, timeout: 3s}]", true, "gave up after 3s; last seen: there is no such object: context deadline exceeded"},
	}, func(t *testing.T, lab *Lab, c story) {
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
	stale := map[string][]string{"wk1/ask-gates": {"wk1", "wk2"}, "wk1/ask-gates-again": {"wk2"}}
	eachLong(t, sim.Options{Workers: 2}, storiesOf(slices.Collect(maps.Keys(stale))...), func(t *testing.T, lab *Lab, at string) {
		gated(t, lab, volumeGate)
		c := lab.Client()
		var pressed time.Time
		c.Emit = whenStarted(at, func() {
			lab.volume("pvc-1", "faulted")
			time.AfterFunc(20*time.Second, func() { pressed = time.Now(); c.Runner.Stop() })
		})
		_, err := c.Roll(t.Context(), planning.Policy{})
		requireFault(t, err, fault.Interrupted, "status.robustness=faulted: stopped")
		require(t, time.Since(pressed) <= 15*time.Second, "%s later: %v", time.Since(pressed), err)
		requireDrift(t, lab, stale[at]...)
		requireNoClaim(t, lab)
	})
}

// A program decides, in the directory of recast.yaml, whether the roll may continue, and its last output is shown.
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

// The plan shows the gates. Doctor asks those about objects once; it looks for the programs of others, and runs none.
func TestPlanAndDoctorOfGates(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		gated(t, lab, strings.TrimSuffix(volumeGate, "]")+", "+
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
		const want = "warning longhorn.io/v1beta2 Volume: does not hold: 1 of 1: longhorn-system/pvc-1: status.robustness=degraded"
		requireSame(t, want, said(diagnosis(t, lab.Client()))[0], "doctor says (-want +got)")
		plan := lab.plan(planning.Policy{})
		require(t, len(plan.Gates) == 6, "the plan's gates: %+v", plan.Gates)
		requireSame(t, cluster.UserGate{TimeoutSeconds: 120, Objects: &cluster.ObjectGate{
			APIVersion: "longhorn.io/v1beta2", Kind: "Volume", Expr: "status.robustness == 'healthy'",
		}}, plan.Gates[0], "the plan's first gate (-want +got)")
		lab.Replace("recast.yaml", "expr: status.robustness ==", "expr: statu.robustness ==")
		_, err := lab.Client().Plan(t.Context(), planning.Policy{})
		requireFault(t, err, fault.Config, "roll.gates[0].expr: not a valid expression: 1:1: undeclared reference to 'statu'")
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
				remove(lab)
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

func (l *Lab) preset(file string, config []byte) []cluster.UserGate {
	l.t.Helper()
	b := readFile(l.t, file)
	_, gates, found := strings.Cut(string(b), "\nroll:\n")
	mustBe(l.t, found, "%s has no section roll", file)
	l.Write("recast.yaml", config)
	l.Replace("recast.yaml", "roll:\n", "roll:\n"+gates)
	plan := l.plan(planning.Policy{})
	l.Write("recast.yaml", config)
	return plan.Gates
}

func (l *Lab) fill(objects []map[string]any, served []store.Resource) (remove edit) {
	l.t.Helper()
	var undo []edit
	for _, content := range objects {
		u := &unstructured.Unstructured{Object: content}
		for _, r := range served {
			if r.GVK() == u.GroupVersionKind() {
				l.put(r.GroupVersionResource, u.DeepCopy())
				undo = append(undo, without(r.GroupVersionResource, u.GetNamespace(), u.GetName()))
			}
		}
	}
	mustBe(l.t, len(undo) == len(objects), "%d of %d objects are of a kind that is served", len(undo), len(objects))
	return all(undo...)
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

const everyHook = "hooks: {beforeRun: [{command: [h]}], afterRun: [{command: [h]}], beforeBatch: [{command: [h]}], " +
	"afterBatch: [{command: [h]}], beforeNode: [{command: [h]}], afterNode: [{command: [h]}]}"

type hooker struct {
	command.Gates
	// do is the program's behaviour at a point: "beforeNode wk1"; nil: it exits with 0.
	do func(ctx context.Context, at string) (exit int, err error)

	mu   sync.Mutex
	ran  []string
	envs map[string][]string // by point
}

func (h *hooker) RunHook(ctx context.Context, _ cluster.CommandGate, env []string, line func(string)) (cluster.HookEnd, error) {
	at := strings.TrimSpace(variable(env, "RECAST_HOOK") + " " + variable(env, "RECAST_NODE"))
	if strings.HasSuffix(at, "Batch") {
		at += " " + variable(env, "RECAST_BATCH")
	}
	h.mu.Lock()
	h.ran = append(h.ran, at)
	h.envs[at] = env
	h.mu.Unlock()
	line("at " + at)
	if h.do == nil {
		return cluster.HookEnd{Output: "at " + at + "\n"}, nil
	}
	exit, err := h.do(ctx, at)
	return cluster.HookEnd{Exit: exit, Said: "at " + at, Output: "at " + at + "\n"}, err
}

func variable(env []string, name string) string {
	entry, _ := cluster.Find(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	return strings.TrimPrefix(entry, name+"=")
}

func failAt(point string) func(context.Context, string) (int, error) {
	return func(_ context.Context, at string) (int, error) {
		if at == point {
			return 3, nil
		}
		return 0, nil
	}
}

// withHooks makes a lab of stale workers with a hook at each point.
func withHooks(lab *Lab, do func(context.Context, string) (int, error)) (*Client, *hooker) {
	lab.setRoll(everyHook)
	lab.Patch(sim.PatchedExtension)
	c, h := lab.Client(), &hooker{do: do, envs: map[string][]string{}}
	c.Commands = h
	return c, h
}

func (h *hooker) require(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	requireSame(t, want, h.ran, "hooks (-want +got)")
	h.ran = nil
}

// hooksOf are the hooks of a run of one node, and hooksUntil those of a run that ends with one of them.
func hooksOf(batch, node string) []string {
	return []string{"beforeRun", "beforeBatch " + batch, "beforeNode " + node, "afterNode " + node, "afterBatch " + batch, "afterRun"}
}

func hooksUntil(at string) []string {
	points := hooksOf("workers", "wk1")
	return append(points[:slices.Index(points, at)+1], "afterRun")
}

// goesOn rolls again, with hooks that succeed, and everything is done.
func (h *hooker) goesOn(t *testing.T, lab *Lab, want ...string) {
	t.Helper()
	h.do = nil
	must(t, h.next(lab).roll(planning.Policy{})(t.Context()))
	h.require(t, want...)
	requireInSync(t, lab)
}

func (h *hooker) next(lab *Lab) *Client {
	c := lab.second()
	c.Commands = h
	return c
}

// killHooked rolls with hooks and is killed when a step starts. It forgets which hooks ran.
func killHooked(t *testing.T, lab *Lab, step string) *hooker {
	t.Helper()
	c, h := withHooks(lab, nil)
	c.killedAt(t, before(step), c.roll(planning.Policy{}))
	h.ran = nil
	return h
}

// Programs run at their points with the documented environment, and their output is shown and kept.
func TestHooks(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Write("hook.sh", []byte("#!/bin/sh\nenv | grep ^RECAST_ | sort | tr '\\n' ' ' >>asked\necho >>asked\necho \"$RECAST_HOOK with ${PROXMOX_VE_API_TOKEN-no token}\"\n"))
		must(t, os.Chmod(filepath.Join(lab.Dir, "hook.sh"), 0o700))
		lab.setRoll(strings.ReplaceAll(everyHook, "[h]", "[./hook.sh]"))
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		plan := valueOf(c.Plan(t.Context(), planning.Policy{}))(t)
		for _, p := range cluster.HookPoints() {
			want := []cluster.Hook{{TimeoutSeconds: 60, Command: cluster.CommandGate{Args: []string{"./hook.sh"}, Dir: lab.Dir}}}
			requireSame(t, want, plan.Hooks.At(p), "%s in the plan (-want +got)", p)
		}
		var paths, notes []string
		c.Emit = func(e step.Event) {
			switch {
			case e.Status == step.Note && strings.HasSuffix(e.Text, "no token"):
				notes = append(notes, e.Path+": "+e.Text)
			case e.Status == step.Started && regexp.MustCompile(`hooks|gate|take-down|bring-up|-run$`).MatchString(e.Path[strings.LastIndex(e.Path, "/")+1:]):
				paths = append(paths, e.Path)
			}
		}
		rep := c.mustRoll(planning.Policy{})
		const wk1 = "roll/workers/wk1/"
		requireSame(t, []string{
			"before-run", "roll/workers/hooks_before", wk1 + "run-hooks", wk1 + "gate", wk1 + "take-down", wk1 + "bring-up", wk1 + "run-hooks-again", "roll/workers/hooks_after", "after-run",
		}, paths, "steps (-want +got)")
		requireSame(t, []string{
			"before-run: beforeRun with no token", "roll/workers/hooks_before: beforeBatch with no token", wk1 + "run-hooks: beforeNode with no token",
			wk1 + "run-hooks-again: afterNode with no token", "roll/workers/hooks_after: afterBatch with no token", "after-run: afterRun with no token",
		}, notes, "notes (-want +got)")
		asked := regexp.MustCompile(`[0-9a-f]{64}|127\.42\.[0-9.]+`).ReplaceAllString(string(lab.Read("asked")), "X")
		const (
			run   = "RECAST_RUN=20000101-0000-feed "
			batch = "RECAST_BATCH=workers RECAST_CLUSTER=lab "
			node  = "RECAST_NODE=wk1 "
			of    = "RECAST_RESUMED=false RECAST_ROLE=worker " + run + "RECAST_STRATEGY=recreate RECAST_TALOS_VERSION=v1.13.9 RECAST_VMID=9031 \n"
			first = "RECAST_ADDRESS=X RECAST_BATCH=workers RECAST_BUILD_ID=X RECAST_CLUSTER=lab "
		)
		want := "RECAST_CLUSTER=lab RECAST_HOOK=beforeRun RECAST_NODES=wk1 " + run + "\n" +
			batch + "RECAST_HOOK=beforeBatch RECAST_NODES=wk1 " + run + "\n" +
			first + "RECAST_HOOK=beforeNode RECAST_HOST=pve1 " + node + of +
			first + "RECAST_HOOK=afterNode RECAST_HOST=pve1 " + node + "RECAST_OUTCOME=done " + of +
			batch + "RECAST_HOOK=afterBatch RECAST_NODES=wk1 RECAST_OUTCOME=done " + run + "\n" +
			"RECAST_CLUSTER=lab RECAST_ERROR= RECAST_HOOK=afterRun RECAST_NODES=wk1 RECAST_NODES_DONE=wk1 RECAST_NODES_FAILED= RECAST_NODES_LEFT= RECAST_OUTCOME=done " + run + "\n"
		requireSame(t, want, asked, "environments (-want +got)")
		var kept []string
		for _, h := range rep.Hooks {
			kept = append(kept, fmt.Sprintf("%s %s %s %d %s%s", h.Point, h.Batch, h.Node, *h.Exit, h.Error, h.Output))
		}
		require(t, len(kept) == 6 && kept[2] == "beforeNode workers wk1 0 beforeNode with no token\n", "kept %q", kept)
		at := string(lab.Read(".recast/runs/20000101-0000-feed/wk1~hooks~afternode~1.json"))
		requireSays(t, at, `"output": "afterNode with no token\n"`)
		requireInSync(t, lab)
	})
}

// A failed hook before an action prevents it, and the hooks after the run get the outcome.
func TestAHookBefore(t *testing.T) {
	steps := map[string]string{
		"beforeRun": "before-run", "beforeBatch workers": "roll/workers/hooks_before", "beforeNode wk1": "roll/workers/wk1/run-hooks",
	}
	eachLong(t, oneWorker(), storiesOf(slices.Collect(maps.Keys(steps))...), func(t *testing.T, lab *Lab, at string) {
		c, h := withHooks(lab, failAt(at))
		seen := lab.watchOutage()
		before := len(lab.Recorder.Calls())
		rep, err := c.Roll(t.Context(), planning.Policy{})
		want := steps[at] + `: hook "h": h ended with 3: at ` + at
		requireMessage(t, err, fault.Refused, want)
		hints := strings.Join(fault.Hints(err), "\n")
		require(t, strings.Contains(hints, "was touched") || strings.Contains(hints, "not touched"), "hints %q", hints)
		requireNone(t, seen.order, "was out")
		requireNone(t, withoutPulls(changesOfNodes(lab.Recorder.Calls()[before:])), "sent")
		env := strings.Join(h.envs["afterRun"], "\n")
		requireSays(t, env, "RECAST_OUTCOME=failed\nRECAST_ERROR="+want+"\nRECAST_NODES_DONE=\n")
		end := rep.Hooks[len(rep.Hooks)-2]
		require(t, end.Error == "h ended with 3: at "+at && *end.Exit == 3, "the report has %+v", rep.Hooks)
		h.require(t, hooksUntil(at)...)
		requireNoClaim(t, lab)
		requireDrift(t, lab, "wk1")

		h.goesOn(t, lab, hooksOf("workers", "wk1")...)
	})
}

// A failed hook after a node stops the roll there; the next one continues with the next node.
func TestAHookAfterANode(t *testing.T) {
	eachLong(t, sim.Options{Workers: 2}, storiesOf(cluster.Recreate, cluster.InPlace), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.setRoll("canary: false", "reboot: kexec", "strategy: "+string(s)) // else the first in-place upgrade is alone
		c, h := withHooks(lab, failAt("afterNode wk1"))
		err := c.roll(planning.Policy{})(t.Context())
		requireMessage(t, err, fault.Failed, `roll/workers/wk1/run-hooks-again: wk1 is done and takes pods, but no other node is to follow: hook "h": h ended with 3: at afterNode wk1`)
		h.require(t, hooksUntil("afterNode wk1")...)
		lab.requireServing("wk1")
		requireDrift(t, lab, "wk2")
		h.goesOn(t, lab, hooksOf("workers", "wk2")...)
	})
}

// The hooks of a batch run before and after all of its nodes, however many are down at a time.
func TestHooksOfABatch(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 3}, func(t *testing.T, lab *Lab) {
		lab.setRoll("maxUnavailable: {workers: 2, perHost: 2}")
		lab.Patch(everywhere)
		c, h := withHooks(lab, func(_ context.Context, at string) (int, error) {
			if strings.HasPrefix(at, "beforeNode") || strings.HasPrefix(at, "beforeBatch") {
				time.Sleep(time.Second)
			}
			if strings.HasSuffix(at, "wk3") {
				time.Sleep(time.Second)
			}
			return 0, nil
		})
		must(t, c.roll(planning.Policy{})(t.Context()))
		got := strings.Join(h.ran, ", ")
		require(t, regexp.MustCompile(`^beforeRun, beforeBatch canary, beforeNode wk1, afterNode wk1, afterBatch canary, `+
			`beforeBatch control-planes, beforeNode cp1, afterNode cp1, afterBatch control-planes, beforeBatch workers, (beforeNode wk., ){2}(afterNode wk., ){2}afterBatch workers, afterRun$`).MatchString(got),
			"hooks: %s", got)
		requireSame(t, "wk2 wk3", variable(h.envs["beforeBatch workers"], "RECAST_NODES"), "nodes of the batch (-want +got)")
	})
}

// A hook that fails at the end hides neither what was done nor another failure; one that hangs is stopped.
func TestHooksThatFail(t *testing.T) {
	hangs := func(ctx context.Context, at string) (int, error) {
		if at != "beforeNode wk1" {
			return 0, nil
		}
		<-ctx.Done()
		return 0, fmt.Errorf("h was stopped: %w", context.Cause(ctx))
	}
	type story struct {
		do    func(context.Context, string) (int, error)
		kind  fault.Kind
		want  string
		stale []string
		hints int
		takes time.Duration // at least
	}
	eachLong(t, oneWorker(), map[string]story{
		"after the run": {failAt("afterRun"), fault.Failed, `every node is done: after-run: hook "h": h ended with 3: at afterRun`, nil, 1, 0},
		"two of them": {
			func(context.Context, string) (int, error) { return 3, nil }, fault.Refused,
			"before-run: hook \"h\": h ended with 3: at beforeRun\nafter-run: hook \"h\": h ended with 3: at afterRun",
			[]string{"wk1"},
			2, 0,
		},
		"one hangs": {hangs, fault.Refused, `roll/workers/wk1/run-hooks: hook "h": h was stopped: its timeout of 1m0s is over`, []string{"wk1"}, 1, time.Minute},
	}, func(t *testing.T, lab *Lab, c story) {
		client, _ := withHooks(lab, c.do)
		start := time.Now()
		rep, err := client.Roll(t.Context(), planning.Policy{})
		requireMessage(t, err, c.kind, c.want)
		require(t, rep.Outcome == "failed: "+c.want && len(fault.Hints(err)) == c.hints,
			"outcome %q, hints %q", rep.Outcome, fault.Hints(err))
		took := time.Since(start)
		require(t, c.takes == 0 || took >= c.takes && took <= c.takes+2*time.Minute, "it took %s", took)
		requireNoClaim(t, lab)
		requireDrift(t, lab, c.stale...)
	})
}

// However a run ends during the last node of a batch, the hooks after the batch run once that node is done.
func TestHooksAfterTheLastNodeOfABatch(t *testing.T) {
	long(t)
	t.Run("Ctrl-C", func(t *testing.T) {
		inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
			c, h := withHooks(lab, nil)
			c.Emit = whenStarted("wk1/bring-up", func() { c.Runner.Stop() })
			must(t, c.roll(planning.Policy{})(t.Context()))
			h.require(t, hooksOf("workers", "wk1")...)
			requireDrift(t, lab)
		})
	})
	t.Run("a failure in the batch beside it", func(t *testing.T) {
		inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
			lab.setRoll("strategy: in-place", "reboot: kexec", "canary: false", "workersBeside: true", "maxUnavailable: {workers: 1, perHost: 2}")
			working := make(chan struct{})
			c, h := withHooks(lab, func(_ context.Context, at string) (int, error) {
				if at == "beforeNode cp1" {
					<-working
					return 3, nil
				}
				return 0, nil
			})
			lab.Patch(everywhere)
			c.Emit = whenStarted("workers/wk1/upgrade", func() { close(working) })
			requireRefused(t, c.roll(planning.Policy{})(t.Context()), "roll/control-planes/cp1/run-hooks")
			ran := strings.Join(h.ran, ", ")
			require(t, strings.HasSuffix(ran, "afterNode wk1, afterBatch workers, afterRun") && !strings.Contains(ran, "afterBatch control-planes"),
				"hooks: %s", ran)
			requireDrift(t, lab, "cp1", "cp2", "cp3")
		})
	})
}

type notAfter struct{ *hooker }

func (notAfter) RunGate(_ context.Context, _ cluster.CommandGate, env []string) (exit int, said string, err error) {
	if slices.Contains(env, "RECAST_WHEN=after") {
		return 1, "not yet", nil
	}
	return 0, "", nil
}

// If the node is done but its branch is not, no run reaches the hooks after the batch: the error says so.
func TestHooksOfABatchLeftOpen(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func(lab *Lab, c *Client){
		"hook after the node": func(_ *Lab, c *Client) { c.Commands.(*hooker).do = failAt("afterNode wk1") },
		"Ctrl-C in a gate": func(lab *Lab, c *Client) {
			lab.setRoll("gates: [{command: [h], timeout: 1h}]")
			c.Commands = notAfter{c.Commands.(*hooker)}
			c.Emit = whenStarted("wk1/ask-gates-again", func() { c.Runner.Stop() })
		},
	}, func(t *testing.T, lab *Lab, end func(lab *Lab, c *Client)) {
		c, h := withHooks(lab, nil)
		end(lab, c)
		_, err := c.Roll(t.Context(), planning.Policy{})
		requireSays(t, strings.Join(fault.Hints(err), "\n"), "the hooks after the batch workers were not run, "+
			"and the next run runs them only if it still has a node to roll in it")
		h.require(t, hooksUntil("afterNode wk1")...)
		requireDrift(t, lab)
	})
}

// The notices of start and end together delay the end of a run no more than one of them alone.
func TestNoticesDoNotHoldUpTheEnd(t *testing.T) {
	type story struct {
		takes  time.Duration // each
		cancel bool
		want   time.Duration
	}
	eachLong(t, oneWorker(), map[string]story{
		"both hang":                {time.Hour, false, 35 * time.Second},
		"both are slow":            {20 * time.Second, false, 22 * time.Second},
		"the first is soon there":  {time.Second, false, 2 * time.Second},
		"Ctrl-C was pressed twice": {time.Hour, true, 10 * time.Second},
	}, func(t *testing.T, lab *Lab, c story) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client, _ := withHooks(lab, failAt("beforeRun"))
		lab.Replace("recast.yaml", "afterRun: [{command: [h]}], ", "")
		told := &chat{takes: c.takes}
		client.Notify = told
		var ended time.Time
		client.Emit = func(e step.Event) {
			if e.Path == "before-run" && e.Status == step.Failed {
				ended = time.Now()
				if c.cancel {
					cancel()
				}
			}
		}
		_, err := client.Roll(ctx, planning.Policy{})
		require(t, err != nil && len(told.got) == 2 && told.got[1].Event == cluster.NoticeFailure,
			"%v; told %+v", err, told.got)
		// The claim is released before.
		requireTook(t, ended, c.want, c.want+2*time.Second)
	})
}

// Ctrl-C interrupts a hook before a node, and lets one after it finish.
func TestCtrlCInAHook(t *testing.T) {
	both := []string{"wk1", "wk2"}
	stale := map[string][]string{"beforeRun": both, "beforeBatch workers": both, "beforeNode wk1": both, "afterNode wk1": {"wk2"}}
	points := slices.Collect(maps.Keys(stale))
	eachLong(t, sim.Options{Workers: 2}, storiesOf(points...), func(t *testing.T, lab *Lab, pressed string) {
		lab.setRoll("canary: false")
		var client *Client
		client, h := withHooks(lab, func(ctx context.Context, at string) (int, error) {
			if at != pressed {
				return 0, nil
			}
			client.Runner.Stop()
			select {
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			case <-time.After(30 * time.Second):
				return 0, nil
			}
		})
		requireFault(t, client.roll(planning.Policy{})(t.Context()), fault.Interrupted)
		requireSame(t, "interrupted", variable(h.envs["afterRun"], "RECAST_OUTCOME"), "outcome after the run (-want +got)")
		h.require(t, hooksUntil(pressed)...)
		requireDrift(t, lab, stale[pressed]...)
		requireNoClaim(t, lab)
	})
}

// Nobody knows whether the hooks of a killed run ran: its node gets them again. The hooks around two plans get both.
func TestHooksOfAKilledRun(t *testing.T) {
	type story struct {
		workers      int
		strategy, at string
		ran          []string
		got          map[string]string // variables of points
	}
	one := hooksOf("unfinished", "wk1")
	resumed := map[string]string{"afterNode wk1 RECAST_RESUMED": "true"}
	eachLongIn(t, func(s story) sim.Options { return sim.Options{Workers: s.workers} }, map[string]story{
		"recreate": {1, "recreate", "wk1/bring-up", one, resumed},
		"in place": {1, "in-place", "wk1/finish", one, resumed},
		"two plans": {2, "recreate", "wk1/bring-up", slices.Concat(one[:5], hooksOf("workers", "wk2")[1:]), map[string]string{
			"beforeRun RECAST_NODES": "wk1", "beforeBatch workers RECAST_NODES": "wk2", "afterRun RECAST_NODES": "wk1 wk2",
		}},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.setRoll("canary: false", "strategy: "+s.strategy)
		h := killHooked(t, lab, s.at)
		h.goesOn(t, lab, s.ran...)
		for at, want := range s.got {
			i := strings.LastIndex(at, " ")
			requireSame(t, want, variable(h.envs[at[:i]], at[i+1:]), "%s (-want +got)", at)
		}
	})
}

// No hook runs for a node that was paused meanwhile. After a second Ctrl-C those after the run have at most 30 s.
func TestHooksThatWaitForOthers(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func(*testing.T, *Lab){
		"paused": func(t *testing.T, lab *Lab) {
			c, h := withHooks(lab, func(_ context.Context, at string) (int, error) {
				if at == "beforeBatch workers" {
					lab.pause("wk1", "a disk is being replaced")
				}
				return 0, nil
			})
			err := c.roll(planning.Policy{})(t.Context())
			requireMessage(t, err, fault.Refused, "roll/workers/wk1/run-hooks: wk1 was paused since the plan was made: a disk is being replaced")
			h.require(t, "beforeRun", "beforeBatch workers", "afterRun")
			requireDrift(t, lab, "wk1")
		},
		"Ctrl-C twice": func(t *testing.T, lab *Lab) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var pressed time.Time
			c, _ := withHooks(lab, func(within context.Context, at string) (int, error) {
				if at != "afterRun" {
					return 0, nil
				}
				cancel()
				pressed = time.Now()
				<-within.Done()
				return 0, context.Cause(within)
			})
			require(t, c.roll(planning.Policy{})(ctx) != nil, "it was not interrupted")
			requireTook(t, pressed, 29*time.Second, 2*time.Minute)
			requireDrift(t, lab)
		},
	}, func(t *testing.T, lab *Lab, play func(*testing.T, *Lab)) { play(t, lab) })
}

// A failed hook leaves unfinished work as it is.
func TestAHookBeforeUnfinishedWork(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		h := killHooked(t, lab, "wk1/bring-up")
		h.do = failAt("beforeNode wk1")
		requireFault(t, h.next(lab).roll(planning.Policy{})(t.Context()), fault.Refused, "wk1 is as the earlier run had left it")
		// recast undo runs no hook first.
		h.ran = nil
		must(t, errOf(h.next(lab).Recover(t.Context(), "wk1")))
		h.require(t)
		requireInSync(t, lab, "wk1")
	})
}
