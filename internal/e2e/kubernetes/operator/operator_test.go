package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

// TestOperator installs the operator once, as a Deployment, and tells its stories side by side.
func TestOperator(t *testing.T) {
	h := newHouse(t)
	stories := map[string]func(house){
		"bump":    house.versionBump,
		"invalid": house.invalidSpecs,
		"secrets": house.secrets,
		"window":  house.window,
		"fleet":   house.fleet,
		"leave":   house.leave,
	}
	manifests := h.install(slices.Sorted(maps.Keys(stories)))
	t.Run("stories", func(t *testing.T) {
		for name, story := range stories {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				story(h.in(t, name))
			})
		}
	})
	h.requireMinimalAccess(manifests)
	t.Attr("commands", strconv.Itoa(*h.commands))
}

// install applies what recast operator manifests prints for these namespaces, with shorter pauses.
func (h house) install(namespaces []string) (manifests string) {
	h.t.Helper()
	for _, ns := range namespaces {
		h.kubectl("create namespace " + ns)
	}
	out, err := exec.Command(h.binary("recast"), "operator", "manifests", "--image", image, "--namespaces", strings.Join(namespaces, ",")).Output()
	if err != nil {
		h.t.Fatalf("recast operator manifests: %v", err)
	}
	const args, env = "args: [--leader-elect", "- name: POD_NAMESPACE\n"
	manifests = strings.NewReplacer(
		args, args+", --retry=1s, --max-retry=5s, --claim-retry=5s, --leader-election-lease=5s,"+
			" '--metrics-bind-address=$(POD_IP):18080', '--health-probe-bind-address=$(POD_IP):18081', --pages-bind-address=0", // the pods share a network
		"containerPort: 8080", "containerPort: 18080", "containerPort: 8081", "containerPort: 18081",
		env, "- {name: KUBE_FEATURE_WatchListClient, value: 'false'}\n            "+ // lists come first, as from API servers that do not stream them
			"- name: POD_IP\n              valueFrom: {fieldRef: {fieldPath: status.podIP}}\n            "+env,
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
	h.kubectl("create namespace restarted")
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

func (h house) startOperator() *process.Process {
	h.t.Helper()
	cmd := exec.Command(h.binary("recast-operator"), "--job-image", image, "--metrics-bind-address=0", "--health-probe-bind-address=0", "--pages-bind-address=0",
		"--namespaces", h.namespace, "--retry=1s", "--max-retry=5s")
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+filepath.Join(h.plane.Dir, "kubeconfig"))
	return process.Start(h.t, "recast-operator", cmd)
}

var (
	bin   = flag.String("bin", "../../../../bin", "directory with recast and recast-operator, for containers: linked statically")
	speed = flag.String("speed", "20", "of the labs")
)

// image is what the Deployment and the Jobs run.
const image = "ghcr.io/recast-sh/recast:e2e"

// house is a management cluster with the operator, and a namespace in it for the test.
type house struct {
	t         *testing.T
	plane     *plane.ControlPlane
	nodes     []*nodeagent.Node
	namespace string
	page      string // of the documentation, whose commands are typed
	auditLog  string // file
	commands  *int
}

// newHouse starts the management cluster, and installs the operator as the documentation says.
func newHouse(t *testing.T) house {
	t.Helper()
	page := must(os.ReadFile("../../../../docs/howto/operator.md"))(t)
	flags, log := audited(t)
	h := house{t: t, plane: plane.StartWith(t, flags), auditLog: log, namespace: "default", page: string(page), commands: new(int)}
	files := map[string]string{"/etc/ssl/certs": "/etc/ssl/certs"}
	for _, name := range []string{"recast", "recast-operator"} {
		files["/usr/bin/"+name] = h.binary(name)
	}
	for _, name := range []string{"one", "two"} {
		h.nodes = append(h.nodes, nodeagent.Start(t, h.plane.Node(name), name, nodeagent.Options{
			CPUs: 16, MemoryMiB: 64 << 10, MaxPods: 200,
			Images: map[string]nodeagent.Image{image: {Files: files, Entrypoint: []string{"/usr/bin/recast"}, User: "65532:65532", WorkingDir: "/work"}},
		}))
	}
	h.kubectl("label nodes one two node-role.kubernetes.io/control-plane=")
	t.Cleanup(func() {
		if t.Failed() {
			h.showPods()
		}
	})
	return h
}

func (h house) binary(name string) string {
	h.t.Helper()
	file, err := filepath.Abs(filepath.Join(*bin, name))
	if err == nil {
		_, err = os.Stat(file)
	}
	if err != nil {
		h.t.Fatalf("%v: make e2e-operator builds it", err)
	}
	return file
}

// in is the house for a test of its own, in a namespace of its own.
func (h house) in(t *testing.T, namespace string) house {
	t.Helper()
	h.t, h.namespace = t, namespace
	t.Cleanup(func() {
		if t.Failed() {
			h.show()
		}
	})
	return h
}

func (h house) typed(command string) string {
	h.t.Helper()
	if !strings.Contains(h.page, command) {
		h.t.Errorf("the page of the documentation does not say: %s", command)
	}
	args, found := strings.CutPrefix(command, "kubectl ")
	if !found {
		h.t.Fatalf("no kubectl: %s", command)
	}
	return h.kubectl(args)
}

// kubectl runs a command that has to succeed.
func (h house) kubectl(args string) string {
	h.t.Helper()
	out, err := h.try("", args)
	if err != nil {
		h.t.Fatalf("kubectl %s: %v\n%s", args, err, out)
	}
	return out
}

func (h house) apply(manifests string) {
	h.t.Helper()
	if out, err := h.try(manifests, "apply --server-side --force-conflicts -f -"); err != nil {
		h.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// patience is how long a command may take.
const patience = 30 * time.Minute

func (h house) try(stdin, args string) (string, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	words := []string{"kubectl", "--kubeconfig", filepath.Join(h.plane.Dir, "kubeconfig")}
	if h.namespace != "default" { // in which manifests may name others
		words = append(words, "-n", h.namespace)
	}
	words = append(words, split(args)...)
	c := exec.CommandContext(ctx, process.Built(h.t, "controlplane"), words...)
	c.Env = append(os.Environ(), "HOME="+h.plane.Dir)
	c.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	began := time.Now()
	err := c.Run()
	*h.commands++
	fmt.Fprintf(h.t.Output(), "   $ kubectl %s   # %.1f s\n", args, time.Since(began).Seconds())
	return strings.TrimSpace(out.String()), err
}

// split splits a command line into words; single quotes hold words together.
func split(line string) []string {
	var words []string
	word, quoted, open := "", false, false
	for _, r := range line + " " {
		switch {
		case r == '\'':
			quoted, open = !quoted, true
		case r == ' ' && !quoted:
			if word != "" || open {
				words = append(words, word)
			}
			word, open = "", false
		default:
			word += string(r)
		}
	}
	return words
}

func (h house) until(what string, so func() bool) {
	h.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(200 * time.Millisecond) {
		if so() {
			return
		}
	}
	h.t.Fatalf("after %s it is not so that %s", patience, what)
}

// leader is the process that holds the operator's Lease: the name of its pod, an underscore, and a UUID.
func (h house) leader() string {
	h.namespace = "recast-system"
	return h.field("lease/recast-operator", "{.spec.holderIdentity}")
}

func (h house) field(object, path string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.t.Context()), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, process.Built(h.t, "controlplane"), "kubectl", "--kubeconfig", filepath.Join(h.plane.Dir, "kubeconfig"),
		"-n", h.namespace, "get", object, "-o", "jsonpath="+path, "--ignore-not-found")
	out, err := c.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

func (h house) ready(object string) string {
	return h.field(object, `{range .status.conditions[?(@.type=="Ready")]}{.status} {.reason} {.message}{end}`)
}

func (h house) show() {
	h.t.Helper()
	for _, args := range []string{"get talosclusters,imagerolls,jobs,pods -o wide", "get talosclusters,imagerolls -o yaml", "get events"} {
		words := append([]string{"kubectl", "--kubeconfig", filepath.Join(h.plane.Dir, "kubeconfig"), "-n", h.namespace}, split(args)...)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.t.Context()), time.Minute)
		out, _ := exec.CommandContext(ctx, process.Built(h.t, "controlplane"), words...).CombinedOutput()
		cancel()
		h.t.Logf("kubectl %s\n%s", args, out)
	}
	h.showPods()
}

// showPods prints the end of what the containers of the namespace said.
func (h house) showPods() {
	for _, n := range h.nodes {
		for _, c := range n.Containers() {
			if c.Namespace == h.namespace || c.Namespace == "recast-system" {
				out := n.Output(c)
				h.t.Logf("%s/%s on %s:\n%s", c.Namespace, c.Pod, n.Name, out[max(0, len(out)-3000):])
			}
		}
	}
}

// kill sends SIGKILL to the container of the newest pod whose name begins like that. It says whether one ran.
func (h house) kill(namespace, prefix string) bool {
	h.t.Helper()
	for _, n := range h.nodes {
		for _, c := range n.Running() {
			if c.Namespace == namespace && strings.HasPrefix(c.Pod, prefix) && syscall.Kill(c.PID, syscall.SIGKILL) == nil {
				return true
			}
		}
	}
	return false
}

// lab is a Talos cluster on Proxmox.
type lab struct {
	dir, recast string
	env         []string
}

func (h house) startLab(flags ...string) lab {
	h.t.Helper()
	l := lab{dir: filepath.Join(h.t.TempDir(), "lab"), recast: h.binary("recast")}
	cmd := exec.Command(l.recast, append([]string{"lab", "up", "--dir", l.dir, "--speed", *speed}, flags...)...)
	p := process.Start(h.t, "the lab", cmd)
	for range 1200 {
		if env, err := os.ReadFile(filepath.Join(l.dir, "env")); err == nil {
			if _, err := os.Stat(filepath.Join(l.dir, "lab.json")); err == nil {
				for line := range strings.Lines(string(env)) {
					if setting, is := strings.CutPrefix(strings.TrimSpace(line), "export "); is {
						l.env = append(l.env, strings.ReplaceAll(setting, "'", ""))
					}
				}
				return l
			}
		}
		select {
		case <-p.Ended():
			h.t.Fatalf("the lab has ended:\n%s", p.Said)
		case <-time.After(100 * time.Millisecond):
		}
	}
	h.t.Fatalf("the lab is not ready after two minutes:\n%s", p.Said)
	return l
}

func (l lab) variable(name string) string {
	for _, line := range l.env {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			return value
		}
	}
	return ""
}

func (l lab) file(t *testing.T, name string) string {
	t.Helper()
	return string(must(os.ReadFile(filepath.Join(l.dir, name)))(t))
}

// run runs recast beside the lab, as its administrator does.
func (l lab) run(t *testing.T, args string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, l.recast, strings.Fields(args)...)
	c.Dir, c.Env = l.dir, append(os.Environ(), append(l.env, "NO_COLOR=1", "HOME="+l.dir)...)
	out, err := c.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	mustDo(t, err)
	return string(out), 0
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// player carries out the operator's Jobs. It stands for Kubernetes' Job controller, for the kubelet and for what
// runs in the pod: it reports as the attempt of a Job does, with the rights of the Job's account, and then writes
// how the Job has ended.
type player struct {
	t     *testing.T
	api   *kubernetes.Clientset
	slots chan struct{} // pods that run at a time
	step  time.Duration // how long a node takes, or a check, or a plan

	mu      sync.Mutex
	runs    map[string]string // the version of each cluster
	wanted  map[string]string // the version that its plan is of
	sites   map[string]string
	refuses map[string]bool // clusters whose roll ends with exit code 4
	hold    bool            // rolls do not end
	rolling map[string]bool // clusters between the begin of a plan and the end of a roll
	rolls   []rolled
	most    map[string]int // clusters that were rolled at a time, by site; "" is all sites
	jobs    map[string]int // by kind
}

type rolled struct {
	fleet, cluster string
	began, ended   time.Time
}

var nodes = []string{"cp1", "cp2", "cp3"}

const firstVersion = "v1.13.8"

func startPlayer(t *testing.T, api *kubernetes.Clientset) *player {
	t.Helper()
	const capacity = 60
	p := &player{
		t: t, api: api, slots: make(chan struct{}, capacity), step: 100 * time.Millisecond,
		runs: map[string]string{}, wanted: map[string]string{}, sites: map[string]string{}, refuses: map[string]bool{},
		rolling: map[string]bool{}, most: map[string]int{}, jobs: map[string]int{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var playing sync.WaitGroup
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = "app.kubernetes.io/managed-by=recast-operator"
	}))
	_, err := factory.Batch().V1().Jobs().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		playing.Go(func() { p.play(ctx, o.(*batchv1.Job)) })
	}})
	mustDo(t, err)
	factory.Start(ctx.Done())
	t.Cleanup(func() { cancel(); factory.Shutdown(); playing.Wait() })
	return p
}

// task is what the operator asks of a Job.
type task struct {
	Kind, Namespace, Cluster, Roll, Job, Results, For, TalosVersion string

	account string // of the Job's pod
}

func (p *player) play(ctx context.Context, j *batchv1.Job) {
	var k task
	if err := json.Unmarshal([]byte(j.Spec.Template.Spec.Containers[0].Env[0].Value), &k); err != nil {
		p.t.Errorf("Job %s: %v", j.Name, err)
		return
	}
	k.account = "system:serviceaccount:" + k.Namespace + ":" + j.Spec.Template.Spec.ServiceAccountName
	p.begin(k)
	p.slots <- struct{}{}
	defer func() { <-p.slots }()
	p.jobStatus(ctx, k, map[string]any{"active": 1, "ready": 1, "startTime": metav1.Now()})
	code := map[string]func(context.Context, task) int{"check": p.check, "plan": p.plan, "roll": p.roll}[k.Kind](ctx, k)
	if k.Kind == "roll" {
		p.end(k)
	}
	p.jobStatus(ctx, k, endOf(code))
}

// begin counts a Job, and a roll from its plan on.
func (p *player) begin(k task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.jobs[k.Kind]++
	if k.Kind != "plan" {
		return
	}
	p.rolling[k.Cluster] = true
	p.rolls = append(p.rolls, rolled{fleet: strings.TrimSuffix(k.Roll, "-"+k.Cluster), cluster: k.Cluster, began: time.Now()})
	at := map[string]int{"": len(p.rolling)}
	for cluster := range p.rolling {
		at[p.sites[cluster]]++
	}
	for site, n := range at {
		p.most[site] = max(p.most[site], n)
	}
}

// end is before the operator is told.
func (p *player) end(k task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.rolling, k.Cluster)
	for i := range p.rolls {
		if p.rolls[i].cluster == k.Cluster && p.rolls[i].ended.IsZero() {
			p.rolls[i].ended = time.Now()
		}
	}
}

func endOf(code int) map[string]any {
	now := metav1.Now()
	condition := func(kind batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastProbeTime: now, LastTransitionTime: now}
	}
	if code == 0 {
		return map[string]any{
			"active": 0, "ready": 0, "succeeded": 1, "completionTime": now,
			"conditions": []batchv1.JobCondition{condition(batchv1.JobSuccessCriteriaMet), condition(batchv1.JobComplete)},
		}
	}
	return map[string]any{
		"active": 0, "ready": 0, "failed": 1,
		"conditions": []batchv1.JobCondition{condition(batchv1.JobFailureTarget), condition(batchv1.JobFailed)},
	}
}

func (p *player) version(k task) (runs, wants string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.runs[k.Cluster] == "" {
		p.runs[k.Cluster] = firstVersion
	}
	if k.TalosVersion == "" {
		k.TalosVersion = firstVersion
	}
	return p.runs[k.Cluster], k.TalosVersion
}

// text stands for JSON of recast's.
func text(kib int) string { return strings.Repeat(strings.Repeat("x", 1023)+"\n", kib) }

func (p *player) check(ctx context.Context, k task) int {
	began := metav1.Now()
	time.Sleep(p.step)
	runs, wants := p.version(k)
	check := map[string]any{"job": k.Job, "for": k.For, "started": began, "revision": "sha256:" + wants, "files": "files of " + wants, "lock": "lock of " + wants, "exitCode": 0}
	stale := 0
	if runs != wants {
		stale = len(nodes)
		check["exitCode"], check["reasons"] = 2, eachNode("Talos %s instead of %s", runs, wants)
	}
	p.keep(ctx, k, map[string]any{"data": map[string]any{"drift.json": text(4), "recast.lock": text(2)}})
	check["ended"] = metav1.Now()
	p.report(ctx, k, map[string]any{
		"check": check, "builds": []any{map[string]any{"schematic": "default", "id": strings.Repeat("0123456789abcdef", 4)}},
		"nodes":      map[string]any{"total": len(nodes), "inSync": len(nodes) - stale, "stale": stale, "unread": 0},
		"talos":      map[string]any{"current": runs, "wanted": wants},
		"kubernetes": map[string]any{"current": "v1.34.1", "wanted": "v1.34.1"},
	})
	return 0
}

func eachNode(format string, args ...any) []string {
	var lines []string
	for _, n := range nodes {
		lines = append(lines, n+": "+fmt.Sprintf(format, args...))
	}
	return lines
}

func (p *player) plan(ctx context.Context, k task) int {
	time.Sleep(p.step)
	runs, wants := p.version(k)
	p.mu.Lock()
	p.wanted[k.Cluster] = wants
	p.mu.Unlock()
	p.keep(ctx, k, map[string]any{"data": map[string]any{"plan.json": text(10)}, "binaryData": map[string]any{"files.tar.gz": []byte(text(4))}})
	p.report(ctx, k, map[string]any{"plan": map[string]any{
		"hash": "plan-of-" + wants, "configMap": k.Results, "revision": "sha256:" + wants, "nodes": len(nodes), "lastNode": nodes[0],
		"lines": eachNode("recreate, about 2m40s away: Talos %s instead of %s", runs, wants),
	}})
	return 0
}

func (p *player) roll(ctx context.Context, k task) int {
	progress := func(done int) map[string]any {
		return map[string]any{
			"done": done, "total": len(nodes), "summary": fmt.Sprintf("%d/%d", done, len(nodes)), "finished": nodes[:done],
			"node": nodes[min(done, len(nodes)-1)], "message": "wait until etcd has all members", "updated": metav1.Now(),
		}
	}
	outcome := map[string]any{"job": k.Job, "exitCode": 0, "run": "run-of-" + k.Job, "message": "done", "report": k.Results}
	if p.refuse(k.Cluster) {
		time.Sleep(p.step)
		outcome["exitCode"], outcome["message"] = 4, "wk1: the last healthy replica of volume data is there"
		p.report(ctx, k, map[string]any{"outcome": outcome})
		return 4
	}
	for done := range nodes {
		p.report(ctx, k, map[string]any{"progress": progress(done)})
		time.Sleep(p.step)
	}
	for !p.finish(k.Cluster) && ctx.Err() == nil {
		time.Sleep(p.step)
	}
	p.keep(ctx, k, map[string]any{"data": map[string]any{"report.json": text(10), "report.html": text(30)}})
	p.report(ctx, k, map[string]any{"progress": progress(len(nodes)), "outcome": outcome})
	return 0
}

func (p *player) refuse(cluster string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refuses[cluster]
}

// finish says whether a roll may end. If so, the cluster has its new version.
func (p *player) finish(cluster string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hold {
		p.runs[cluster] = p.wanted[cluster]
	}
	return !p.hold
}

func (p *player) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// of are the rolls of a FleetRoll so far, in the order in which they began.
func (p *player) of(fleet string) (list []rolled) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rolls {
		if r.fleet == fleet {
			list = append(list, r)
		}
	}
	return list
}

// running is how many rolls of a FleetRoll have not ended.
func running(list []rolled) (n int) {
	for _, r := range list {
		if r.ended.IsZero() {
			n++
		}
	}
	return n
}

// report replaces fields of the status of what the task is about.
func (p *player) report(ctx context.Context, k task, fields map[string]any) {
	var patch []map[string]any
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		patch = append(patch, map[string]any{"op": "add", "path": "/status/" + name, "value": fields[name]})
	}
	object := "imagerolls/" + k.Roll
	if k.Kind == "check" {
		object = "talosclusters/" + k.Cluster
	}
	p.patch(ctx, k, types.JSONPatchType, "/apis/recast.dev/v1alpha1/namespaces/"+k.Namespace+"/"+object+"/status", patch)
}

func (p *player) keep(ctx context.Context, k task, content map[string]any) {
	p.patch(ctx, k, types.MergePatchType, "/api/v1/namespaces/"+k.Namespace+"/configmaps/"+k.Results, content)
}

// patch patches an object with the rights of the Job's account. They may not have arrived yet: a pod
// would not be that quick.
func (p *player) patch(ctx context.Context, k task, kind types.PatchType, path string, content any) {
	p.try(ctx, k, func(b []byte) error {
		return p.api.RESTClient().Patch(kind).AbsPath(path).SetHeader("Impersonate-User", k.account).Body(b).Do(ctx).Error()
	}, content)
}

func (p *player) jobStatus(ctx context.Context, k task, s map[string]any) {
	p.try(ctx, k, func(b []byte) error {
		_, err := p.api.BatchV1().Jobs(k.Namespace).Patch(ctx, k.Job, types.MergePatchType, b, metav1.PatchOptions{}, "status")
		return err
	}, map[string]any{"status": s})
}

func (p *player) try(ctx context.Context, k task, do func([]byte) error, content any) {
	b, err := json.Marshal(content)
	if err == nil {
		for range 50 {
			if err = do(b); err == nil || ctx.Err() != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	p.t.Errorf("Job %s: %v", k.Job, err)
}
