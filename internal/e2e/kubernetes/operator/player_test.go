package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

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

// rolled is a roll of a cluster.
type rolled struct {
	fleet, cluster string
	began, ended   time.Time
}

// nodes are those of each cluster.
var nodes = []string{"cp1", "cp2", "cp3"}

const firstVersion = "v1.13.8"

// startPlayer plays until the test ends.
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

// endOf is the status that the Job controller writes.
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

// version is what a cluster runs, and what its task asks for.
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

// check reports like recast drift.
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

// roll reports the progress of each node.
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

// set changes what the player does.
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

// keep fills in the ConfigMap for results.
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
