package operator

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

// TestOperator installs the operator once, as a Deployment, and tells its stories side by side.
func TestOperator(t *testing.T) {
	h := newHouse(t)
	manifests := h.install()
	t.Run("stories", func(t *testing.T) {
		for name, story := range map[string]func(house){
			"bump":    house.versionBump,
			"invalid": house.invalidSpecs,
			"secrets": house.secrets,
			"window":  house.window,
			"fleet":   house.fleet,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				story(h.in(t, name))
			})
		}
	})
	h.requireMinimalAccess(manifests)
	t.Attr("commands", strconv.Itoa(*h.commands))
}

// install applies what recast operator manifests prints, with shorter pauses.
func (h house) install() (manifests string) {
	h.t.Helper()
	out, err := exec.Command(h.binary("recast"), "operator", "manifests", "--image", image).Output()
	if err != nil {
		h.t.Fatalf("recast operator manifests: %v", err)
	}
	const args, env = "args: [--leader-elect", "- name: POD_NAMESPACE\n"
	manifests = strings.NewReplacer(
		args, args+", --retry=1s, --max-retry=5s, --claim-retry=5s, --leader-election-lease=5s, '--namespaces=bump,invalid,secrets,window,fleet',"+
			" '--metrics-bind-address=$(POD_IP):18080', '--health-probe-bind-address=$(POD_IP):18081', --pages-bind-address=0", // the pods share a network
		"containerPort: 8080", "containerPort: 18080", "containerPort: 8081", "containerPort: 18081",
		env, "- name: POD_IP\n              valueFrom: {fieldRef: {fieldPath: status.podIP}}\n            "+env,
	).Replace(string(out))
	if manifests == string(out) {
		h.t.Fatalf("the manifests do not say %s", args)
	}
	crds, _, _ := strings.Cut(string(out), "kind: Namespace")
	crds = crds[:strings.LastIndex(crds, "---")]
	if out, err := h.try(crds, "apply --server-side --dry-run=server -f -"); err != nil {
		h.t.Fatalf("the CRDs: %v\n%s", err, out)
	}
	h.apply(manifests)
	h.kubectl("-n recast-system wait --for=condition=Available deployment/recast-operator --timeout=3m")
	return manifests
}

// versionBump is the main story: a version is bumped in a ConfigMap, its roll is approved, and the Job's process
// is killed five times.
func (h house) versionBump() {
	t := h.t
	l := h.startLab("--talos-version", "v1.13.8")
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.apply(files(t, l, "prod"))
	h.apply(h.cluster("prod", "lock: Update"))
	h.typed("kubectl wait --for=condition=Ready taloscluster/prod --timeout=10m")
	h.kubectl("get taloscluster prod")
	h.apply(files(t, l, "prod", "version: v1.13.8", "version: v1.13.9"))
	h.typed("kubectl wait --for=condition=Drifted taloscluster/prod --timeout=10m")
	h.typed("kubectl wait --for=create imageroll/prod-1 --timeout=10m")
	h.typed("kubectl wait --for=jsonpath='{.status.phase}'=AwaitingApproval imageroll/prod-1 --timeout=10m")
	if lines := h.typed("kubectl get imageroll prod-1 -o jsonpath='{.status.plan.lines}'"); !strings.Contains(lines, "wk1: recreate") {
		t.Errorf("the plan is %s", lines)
	}
	for _, command := range []string{
		"kubectl get talosclusters", "kubectl get tc,ir,fr", "kubectl explain taloscluster.spec.windows", "kubectl explain imageroll.status.plan",
	} {
		h.typed(command)
	}
	h.typed(`kubectl patch imageroll prod-1 --type=merge -p '{"spec":{"approved":true}}'`)
	leader := h.leader()
	random := rand.New(rand.NewPCG(1, 2))
	for kills := 0; kills < 5; {
		if phase := h.field("imageroll/prod-1", "{.status.phase}"); phase == "Succeeded" || phase == "Failed" {
			t.Fatalf("the roll has ended after %d kills: %s", kills, h.ready("imageroll/prod-1"))
		}
		h.until("the Job of prod-1 runs", func() bool { return h.runs(h.namespace, "prod-1-roll-") })
		time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
		if h.kill(h.namespace, "prod-1-roll-") {
			kills++
			fmt.Fprintf(t.Output(), "   killed the Job's process, %d\n", kills)
		}
		if kills == 2 {
			fmt.Fprintf(t.Output(), "   killed the leading operator, %s: %t\n", leader, h.kill("recast-system", strings.Split(leader, "_")[0]))
		}
		h.until("the killed process is gone", func() bool { return !h.runs(h.namespace, "prod-1-roll-") || kills == 0 })
	}
	h.typed("kubectl wait --for=condition=Ready imageroll/prod-1 --timeout=30m")
	h.typed("kubectl wait --for=condition=Ready taloscluster/prod --timeout=30m")
	if now := h.leader(); now == leader || leader == "" {
		t.Errorf("%q led, and %q leads after it was killed", leader, now)
	}
	l.inSync(t, "v1.13.9")
	fmt.Fprintf(t.Output(), "%s\n", h.kubectl("get imageroll prod-1 -o yaml"))
}

// runs says whether a container of such a pod runs.
func (h house) runs(namespace, prefix string) bool {
	for _, n := range h.nodes {
		for _, c := range n.Running() {
			if c.Namespace == namespace && strings.HasPrefix(c.Pod, prefix) {
				return true
			}
		}
	}
	return false
}

// inSync holds a lab against a version, by recast itself and without the operator.
func (l lab) inSync(t *testing.T, version string) {
	t.Helper()
	yaml := strings.ReplaceAll(l.file(t, "recast.yaml"), "v1.13.8", version)
	writeFile(t, filepath.Join(l.dir, "recast.yaml"), yaml)
	if out, code := l.run(t, "lock"); code != 0 {
		t.Fatalf("recast lock: exit code %d\n%s", code, out)
	}
	if out, code := l.run(t, "drift"); code != 0 {
		t.Errorf("recast drift: exit code %d\n%s", code, out)
	}
	if out, code := l.run(t, "lab check --dir ."); code != 0 {
		t.Errorf("recast lab check: exit code %d\n%s", code, out)
	}
}

// TestOperatorRestarted kills the operator in ten moments of a story, and starts it again.
func TestOperatorRestarted(t *testing.T) {
	h := newHouse(t)
	out := must(exec.Command(h.binary("recast"), "operator", "manifests", "--image", image).Output())(t)
	h.apply(string(out))
	h.kubectl("-n recast-system scale deployment/recast-operator --replicas=0")
	h = h.in(t, "restarted")
	l := h.startLab("--talos-version", "v1.13.8")
	operator := h.startOperator()
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.apply(files(t, l, "prod", "version: v1.13.8", "version: v1.13.9"))
	h.apply(h.cluster("prod", "lock: Update", "rolls: {approval: Automatic}"))
	seen := map[string]bool{}
	kills := 0
	h.until("the cluster is in sync, and the operator was killed ten times", func() bool {
		now := h.field("taloscluster/prod", "{.status.checks} {.status.rolls} {.status.check.job}") + h.field("imageroll/prod-1", "{.status.phase} {.status.begun} {.status.madeJob} {.status.progress.summary}")
		if !seen[now] && kills < 10 {
			seen[now] = true
			kills++
			fmt.Fprintf(t.Output(), "   killed the operator at: %s\n", now)
			operator.Kill()
			operator = h.startOperator()
		}
		return kills == 10 && strings.HasPrefix(h.ready("taloscluster/prod"), "True InSync")
	})
	l.inSync(t, "v1.13.9")
	jobs := h.kubectl("get jobs -o name")
	if n := strings.Count(jobs, "-roll-"); n != 1 {
		t.Errorf("%d Jobs rolled the cluster, want 1:\n%s", n, jobs)
	}
	t.Attr("operator-kills", strconv.Itoa(kills))
}

// startOperator starts the operator as a process of this machine.
func (h house) startOperator() *process.Process {
	h.t.Helper()
	cmd := exec.Command(h.binary("recast-operator"), "--job-image", image, "--metrics-bind-address=0", "--health-probe-bind-address=0", "--pages-bind-address=0",
		"--namespaces", h.namespace, "--retry=1s", "--max-retry=5s")
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+filepath.Join(h.plane.Dir, "kubeconfig"))
	return process.Start(h.t, "recast-operator", cmd)
}
