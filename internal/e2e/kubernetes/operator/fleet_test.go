package operator

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

// fleet: a FleetRoll of one cluster sets its target by the annotation, and its ImageRoll brings it there.
func (h house) fleet() {
	t := h.t
	l := h.startLab("--talos-version", "v1.13.8")
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.apply(files(t, l, "prod"))
	h.apply(h.cluster("prod", "lock: Update", "rolls: {create: Never}"))
	h.kubectl("wait --for=condition=Ready taloscluster/prod --timeout=10m")
	h.apply(`
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {name: autumn}
spec:
  talosVersion: v1.13.9
  stages:
    - {name: all, selector: {}, gates: ["cluster.status.nodes.total == 3"]}
`)
	h.kubectl("wait --for=condition=Ready fleetroll/autumn --timeout=30m")
	h.typed(`kubectl wait --for=jsonpath='{.metadata.annotations.recast\.dev/talos-status}'=completed taloscluster/prod --timeout=30m`)
	h.kubectl("wait --for=condition=Ready taloscluster/prod --timeout=10m")
	fmt.Fprintf(t.Output(), "%s\n", h.kubectl("get fleetrolls,imagerolls,talosclusters"))
	l.inSync(t, "v1.13.9")
}

// idle: in a minute in which nothing happens, the operator does nothing but renew its Lease.
func (f *fleet) idle() {
	before := f.operator.settle()
	time.Sleep(time.Minute) // that is what is measured
	c := f.operator.read().since(before)
	fmt.Fprintf(f.t.Output(), "idle, %d clusters: %s\n", f.clusters, c)
	if most := float64(f.clusters) / 10; c.reconciles > most || c.requests > most || c.writes > 0 { // watches may be renewed
		f.t.Errorf("in a minute without a change: %s", c)
	}
	f.t.Attr("idle-reconciles", fmt.Sprint(int(c.reconciles)))
	f.t.Attr("idle-requests", fmt.Sprint(int(c.requests)))

	before = f.operator.read()
	checks := f.player.count("check")
	f.kubectl("annotate talosclusters --all recast.dev/check-requested=again --overwrite")
	f.until("each is checked again", func() bool { return f.player.count("check") == checks+f.clusters })
	c = f.operator.settle().since(before).per(f.clusters)
	fmt.Fprintf(f.t.Output(), "a check of one that is in sync: %s; once an hour, that is %.2f requests per cluster and minute\n", c, c.requests/60)
	f.t.Attr("requests-per-check", fmt.Sprint(int(c.requests+0.5)))
}

// waves: the example of the documentation, approved, paused and continued with its commands.
func (f *fleet) waves() {
	t, p := f.t, f.player
	before := f.operator.read()
	f.apply(f.example())
	f.awaits("autumn", "AwaitingApproval")
	canaries := p.of("autumn")
	if len(canaries) != sites || running(canaries) > 0 {
		t.Errorf("%d clusters were rolled before stage all was approved, want the %d canaries", len(canaries), sites)
	}
	for _, r := range canaries {
		if r.cluster >= clusterName(sites) {
			t.Errorf("%s was rolled with the canaries", r.cluster)
		}
	}
	fmt.Fprintf(t.Output(), "%s\n", f.typed("kubectl get fleetroll autumn"))
	p.set(func() { p.hold = true })
	f.typed(`kubectl patch fleetroll autumn --type=merge -p '{"spec":{"approvedStages":["all"]}}'`)
	const atATime, perSite, pauseAfter = 10, 2, 30
	f.until("ten are rolled at a time", func() bool { return running(p.of("autumn")) == atATime })
	p.set(func() { p.hold = false })
	f.until("some have ended", func() bool { return len(p.of("autumn")) >= sites+pauseAfter })
	p.set(func() { p.hold = true })
	f.typed(`kubectl patch fleetroll autumn --type=merge -p '{"spec":{"state":"Paused"}}'`)
	f.awaits("autumn", "Paused")
	p.set(func() { p.hold = false })
	f.until("what ran has ended", func() bool { return f.status("autumn").Running == 0 })
	f.operator.settle()
	paused := len(p.of("autumn"))
	if s := f.status("autumn"); paused == f.clusters || running(p.of("autumn")) > 0 || s.Done != paused {
		t.Errorf("paused: %d were begun, status: %d done, %d run", paused, s.Done, s.Running)
	}
	f.typed(`kubectl patch fleetroll autumn --type=merge -p '{"spec":{"state":"Running"}}'`)
	f.typed("kubectl wait --for=condition=Ready fleetroll/autumn --timeout=24h")
	f.inSync(0)
	c := f.operator.settle().since(before).per(f.clusters)
	fmt.Fprintf(t.Output(), "%s\na roll by a FleetRoll: %s\n", f.typed("kubectl get fleetroll autumn"), c)

	list := p.of("autumn")
	var last, first time.Time // of the canaries, of the others
	for i, r := range list {
		if i < sites && r.ended.After(last) {
			last = r.ended
		} else if i >= sites && (first.IsZero() || r.began.Before(first)) {
			first = r.began
		}
	}
	if pause := first.Sub(last); pause < soak-time.Second { // ends are kept in whole seconds
		t.Errorf("the next stage began %s after the canaries, want %s", pause, soak)
	}
	if s := f.status("autumn"); len(list) != f.clusters || s.Done != f.clusters || s.Failed != 0 {
		t.Errorf("%d rolls of %d clusters, %d done, %d failed", len(list), f.clusters, s.Done, s.Failed)
	}
	most := p.mostAtATime()
	if most[""] != atATime {
		t.Errorf("%d clusters were rolled at a time, want %d", most[""], atATime)
	}
	for site, n := range most {
		if site != "" && n > perSite {
			t.Errorf("%d clusters of %s were rolled at a time, want at most %d", n, site, perSite)
		}
	}
}

// threshold: two failed clusters of the second stage stop it, and the third one never begins.
func (f *fleet) threshold() {
	t, p := f.t, f.player
	f.apply(`
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {name: winter}
spec:
  talosVersion: v1.13.10
  maxConcurrent: 4
  maxConcurrentPerSite: 2
  abortThreshold: 2
  stages:
    - {name: canaries, selector: {matchLabels: {ring: canary}}}
    - {name: early, selector: {matchLabels: {ring: early}}, approval: Manual}
    - {name: all, selector: {}}
`)
	f.awaits("winter", "AwaitingApproval")
	p.set(func() { p.hold, p.refuses["c0011"], p.refuses["c0012"] = true, true, true })
	f.kubectl(`patch fleetroll winter --type=merge -p '{"spec":{"approvedStages":["early"]}}'`)
	f.awaits("winter", "AbortThreshold")
	p.set(func() { p.hold = false })
	f.kubectl("wait --for=condition=Progressing=False fleetroll/winter --timeout=10m")
	f.operator.settle()
	message := f.ready("fleetroll/winter")
	fmt.Fprintf(t.Output(), "%s\n", message)
	if !strings.Contains(message, "c0011, c0012") {
		t.Errorf("it does not name those that failed")
	}
	begun := map[string]int{}
	for _, m := range f.status("winter").Members {
		if m.Phase != "Waiting" {
			begun[m.Stage]++
		}
	}
	// Four ran, and one more may have begun between the two failures.
	if begun["canaries"] != sites || begun["early"] < 4 || begun["early"] > 5 || begun["all"] != 0 {
		t.Errorf("begun by stage: %v", begun)
	}
	if s := f.status("winter"); s.Failed != 2 || s.Running != 0 || s.Done != begun["canaries"]+begun["early"]-2 || len(p.of("winter")) != begun["canaries"]+begun["early"] {
		t.Errorf("%d done, %d failed, %d run, %d rolls", s.Done, s.Failed, s.Running, len(p.of("winter")))
	}
}

// fleet is a management cluster with many TalosClusters, whose Jobs are played.
type fleet struct {
	house
	player   *player
	operator single
	clusters int
}

var thousand = flag.Bool("thousand", false, "let the fleet grow to 1,000 clusters, which takes ten minutes")

// TestFleet rolls a hundred clusters in ten sites, and then a thousand if that is asked for, and measures the operator.
func TestFleet(t *testing.T) {
	h := newEmptyHouse(t, "fleet.md")
	h.namespace = "fleet"
	h.kubectl("create namespace fleet")
	f := &fleet{house: h, player: startPlayer(t, h.plane.Client), operator: h.startSingle()}
	f.grow(100)
	type story struct {
		name string
		tell func(*fleet)
	}
	stories := []story{{"idle", (*fleet).idle}, {"waves", (*fleet).waves}, {"threshold", (*fleet).threshold}, {"pages", (*fleet).pages}, {"memory", (*fleet).hundred}}
	if *thousand {
		stories = append(stories, story{"growth", (*fleet).growth}, story{"all pages", (*fleet).pages})
	}
	stories = append(stories, story{"restart", (*fleet).restart})
	for _, story := range stories {
		passed := t.Run(story.name, func(t *testing.T) {
			inside := *f
			inside.t = t
			story.tell(&inside)
			f.operator, f.clusters = inside.operator, inside.clusters
		})
		if !passed {
			t.Logf("%s\n%s", f.kubectl("get fleetrolls -o wide"), f.kubectl("get events --sort-by=.lastTimestamp --field-selector=involvedObject.kind=FleetRoll"))
			return
		}
	}
	t.Attr("commands", fmt.Sprint(*h.commands))
}

const sites = 10

// grow creates TalosClusters until there are so many, and waits until all are in sync. The first one of each site
// is a canary.
func (f *fleet) grow(to int) {
	f.t.Helper()
	var wait sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := f.clusters; i < to; i++ {
		name, site, ring := clusterName(i), fmt.Sprintf("site-%d", i%sites), "later"
		switch {
		case i < sites:
			ring = "canary"
		case i < 3*sites:
			ring = "early"
		}
		f.player.set(func() { f.player.sites[name] = site })
		files := configMap(f.t, name, map[string]string{"recast.yaml": text(2), "schematics__default.yaml": text(1)})
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			f.create("/api/v1", "configmaps", files)
			f.create("/apis/recast.dev/v1alpha1", "talosclusters", fmt.Sprintf(`
apiVersion: recast.dev/v1alpha1
kind: TalosCluster
metadata: {name: %s, labels: {topology.kubernetes.io/region: %s, ring: %s, size: "%d"}}
spec:
  source: {configMap: {name: %[1]s}}
  secrets: {proxmoxToken: {name: %[1]s}, talosconfig: {name: %[1]s}, kubeconfig: {name: %[1]s}}
  lock: Update
  drift: {schedule: %[5]q}
  rolls: {create: Never}
`, name, site, ring, to, f.schedule()))
		})
	}
	wait.Wait()
	from := f.clusters
	f.clusters = to
	f.inSync(from)
}

func clusterName(i int) string { return fmt.Sprintf("c%04d", i) }

// schedule is an hourly one whose time does not come within half an hour.
func (f *fleet) schedule() string {
	return fmt.Sprintf("%d * * * *", time.Now().Add(-20*time.Minute).Minute())
}

func (f *fleet) create(group, resource, manifest string) {
	err := f.plane.Client.RESTClient().Post().AbsPath(group+"/namespaces/"+f.namespace+"/"+resource).
		SetHeader("Content-Type", "application/yaml").Body([]byte(manifest)).Do(f.t.Context()).Error()
	if err != nil {
		f.t.Errorf("create %s: %v\n%s", resource, err, manifest)
	}
}

func (f *fleet) inSync(from int) {
	f.t.Helper()
	f.until("all clusters are in sync", func() bool {
		time.Sleep(time.Second)
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct {
					Conditions []struct{ Type, Status, Reason string }
				}
			}
		}
		f.get("talosclusters", &list)
		n := 0
		for _, c := range list.Items {
			for _, k := range c.Status.Conditions {
				if c.Metadata.Name >= clusterName(from) && k.Type == "Ready" && k.Status == "True" && k.Reason == "InSync" {
					n++
				}
			}
		}
		return n == f.clusters-from
	})
}

type status struct {
	Done, Failed, Running int
	Stage                 string
	Members               []struct{ Cluster, Stage, Phase string }
}

func (f *fleet) status(name string) status {
	f.t.Helper()
	var o struct{ Status status }
	f.get("fleetrolls/"+name, &o)
	return o.Status
}

func (f *fleet) awaits(name, reason string) {
	f.t.Helper()
	f.kubectl(fmt.Sprintf(`wait --for=jsonpath='{.status.conditions[?(@.type=="Ready")].reason}'=%s fleetroll/%s --timeout=10m`, reason, name))
}

func (f *fleet) example() string {
	f.t.Helper()
	const begin = "apiVersion: recast.dev/v1alpha1\nkind: FleetRoll\n"
	_, text, found := strings.Cut(f.page, begin)
	text, _, closed := strings.Cut(text, "```")
	short := strings.Replace(text, "soak: 24h", "soak: "+soak.String(), 1)
	if !found || !closed || short == text {
		f.t.Fatal("docs/howto/fleet.md has no FleetRoll with a soak time of 24h")
	}
	return begin + short
}

const soak = 3 * time.Second

// cost is what the operator has done.
type cost struct{ reconciles, requests, writes, errors float64 }

func (c cost) String() string {
	return fmt.Sprintf("%.2f reconciles, %.2f requests, of which %.2f write", c.reconciles, c.requests, c.writes)
}

func (c cost) per(clusters int) cost {
	n := float64(clusters)
	return cost{c.reconciles / n, c.requests / n, c.writes / n, c.errors}
}

// since is what was done since an earlier reading. The renewals of the Lease, the only PUTs, do not count.
func (r reading) since(before reading) cost {
	count := func(name string, labels ...string) float64 {
		return r.sum(name, labels...) - before.sum(name, labels...)
	}
	const requests = "rest_client_requests_total"
	return cost{
		reconciles: count("controller_runtime_reconcile_total"),
		requests:   count(requests) - count(requests, `method="PUT"`),
		writes:     count(requests, `method="POST"`) + count(requests, `method="PATCH"`) + count(requests, `method="DELETE"`),
		errors:     count("controller_runtime_reconcile_errors_total") + count(requests, `code="403"`) + count(requests, `code="429"`),
	}
}

// count is how many Jobs of a kind have begun.
func (p *player) count(kind string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs[kind]
}

func (p *player) mostAtATime() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.most)
}

// most is how much memory the operator may have had at some time, in MiB, by the number of clusters.
var most = map[int]int{100: 128, 1000: 512}

// hundred is the memory that the operator has had with the clusters that there are.
func (f *fleet) hundred() {
	peak := f.operator.peakMiB()
	f.t.Attr(fmt.Sprintf("peak-MiB-%d", f.clusters), fmt.Sprint(peak))
	fmt.Fprintf(f.t.Output(), "%d clusters: peak memory %d MiB\n", f.clusters, peak)
	if peak > most[f.clusters] {
		f.t.Errorf("the operator had %d MiB with %d clusters, want at most %d", peak, f.clusters, most[f.clusters])
	}
}

// growth: what a cluster costs does not depend on how many there are.
func (f *fleet) growth() {
	t := f.t
	peaks := map[int]int{f.clusters: f.operator.peakMiB()}
	var small cost
	for _, to := range []int{300, 1000} {
		more := to - f.clusters
		before := f.operator.settle()
		f.grow(to)
		checked := f.operator.settle()
		f.apply(fmt.Sprintf(`
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {name: to-%d}
spec: {talosVersion: v1.13.9, maxConcurrent: 50, maxConcurrentPerSite: 10, stages: [{name: all, selector: {matchLabels: {size: "%[1]d"}}}]}
`, to))
		f.kubectl(fmt.Sprintf("wait --for=condition=Ready fleetroll/to-%d --timeout=30m", to))
		rolled := f.operator.settle()
		peaks[to] = f.operator.peakMiB()
		fmt.Fprintf(t.Output(), "%d clusters; each new one, created and checked: %s; rolled: %s; peak memory %d MiB\n",
			to, checked.since(before).per(more), rolled.since(checked).per(more), peaks[to])
		both := rolled.since(before).per(more)
		if both.errors > 0 {
			t.Errorf("%.0f reconciles failed, or requests were refused", both.errors)
		}
		if small == (cost{}) {
			small = both
		}
		const factor = 1.25
		if both.requests > factor*small.requests || both.reconciles > factor*small.reconciles {
			t.Errorf("%d clusters: %s for each new one, want at most %.2f times that of 300: %s", to, both, factor, small)
		}
		if to == 1000 {
			t.Attr("requests-per-roll", fmt.Sprint(int(rolled.since(checked).per(more).requests+0.5)))
			t.Attr("reconciles-per-roll", fmt.Sprint(int(rolled.since(checked).per(more).reconciles+0.5)))
		}
	}
	f.memory(peaks)
}

// memory holds peaks against the limits. The second slope may be the larger one by a half: the garbage
// collector's steps are as large as the heap.
func (f *fleet) memory(peaks map[int]int) {
	f.hundred()
	first, second := float64(peaks[300]-peaks[100])/200, float64(peaks[1000]-peaks[300])/700
	fmt.Fprintf(f.t.Output(), "memory of a cluster: %.0f KiB from 100 to 300, %.0f KiB from 300 to 1,000\n", first*1024, second*1024)
	if least := 0.1; second > 1.5*max(first, least) { // MiB
		f.t.Errorf("memory does not grow linearly: %v", peaks)
	}
}

// restart: a new operator finds everything as it should be. It reads, and writes nothing but the Event that it leads.
func (f *fleet) restart() {
	f.operator.Kill()
	f.operator = f.startSingle()
	c := f.operator.settle().since(reading{})
	fmt.Fprintf(f.t.Output(), "restarted, %d clusters: %s; peak memory %d MiB\n", f.clusters, c, f.operator.peakMiB())
	const lists, looks, leads = 50, 3, 1
	if c.writes > leads || c.requests > lists || c.reconciles > float64(looks*f.clusters) {
		f.t.Errorf("after a restart, with nothing to do: %s", c)
	}
}

// pages: every replica shows the whole fleet, what stopped a FleetRoll, and asks the API server nothing for that.
func (f *fleet) pages() {
	standby := f.startReplica()
	last := clusterName(f.clusters - 1)
	f.until("the other replica has all objects", func() bool { return strings.Contains(standby.page("/"), last) })
	before := f.operator.settle()
	const looks, slowest = 20, time.Second
	began := time.Now()
	for range looks {
		for path, wants := range map[string][]string{
			"/":                     {fmt.Sprintf("<dd>%d</dd>", f.clusters), "/clusters/fleet/" + last, "abort threshold"},
			"/fleets/fleet/winter":  {"find out why c0011, c0012 failed", "/rolls/fleet/winter-c0011"},
			"/clusters/fleet/c0011": {"winter-c0011", `<span class="bad">failed</span>`},
			"/rolls/fleet/winter-c0011": {
				"ImageRoll of", "kubectl -n fleet get configmap recast-roll-winter-c0011-plan",
			},
		} {
			for _, replica := range []single{f.operator, standby} {
				text := replica.page(path)
				for _, want := range wants {
					if !strings.Contains(text, want) {
						f.t.Fatalf("%s without %q:\n%s", path, want, text)
					}
				}
			}
		}
	}
	took := time.Since(began) / (looks * 8)
	fmt.Fprintf(f.t.Output(), "a page of %d clusters: %s, %d KiB\n", f.clusters, took.Round(time.Millisecond), len(f.operator.page("/"))>>10)
	if c := f.operator.read().since(before); took > slowest || c.requests > 0 || f.operator.read().sum("leader_election_master_status") != 1 {
		f.t.Errorf("a page took %s; meanwhile: %s", took, c)
	}
	if peak := standby.peakMiB(); peak > most[f.clusters] {
		f.t.Errorf("the other replica had %d MiB", peak)
	}
	standby.Kill()
}

// page is one of the operator's pages, or why there is none.
func (s single) page(path string) string {
	s.h.t.Helper()
	request := must(http.NewRequestWithContext(s.h.t.Context(), http.MethodGet, s.pages+path, http.NoBody))(s.h.t)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Sprintf("%s %v", answer.Status, err)
	}
	return string(text)
}

// newEmptyHouse is a management cluster without nodes, in which a player carries out the Jobs. The operator is
// installed, and runs as a process of this machine with the rights of its installation.
func newEmptyHouse(t *testing.T, page string) house {
	t.Helper()
	text := must(os.ReadFile("../../../../docs/howto/" + page))(t)
	h := house{t: t, plane: plane.Start(t, "--controllers=*,-job-controller"), namespace: "default", page: string(text), commands: new(int)}
	out, err := exec.Command(h.binary("recast"), "operator", "manifests", "--image", image, "--all-namespaces").Output()
	if err != nil {
		t.Fatalf("recast operator manifests: %v", err)
	}
	h.apply(string(out))
	h.kubectl("-n recast-system scale deployment/recast-operator --replicas=0")
	return h
}

// single is the operator as a process of this machine.
type single struct {
	*process.Process
	h              house
	metrics, pages string // URLs
}

func (h house) startSingle() single {
	h.t.Helper()
	s := h.startReplica()
	h.until("the operator leads", func() bool { return s.read().sum("leader_election_master_status") == 1 })
	return s
}

// startReplica starts the operator with the account that its installation has made.
func (h house) startReplica() single {
	h.t.Helper()
	address, pages := process.FreeAddress(h.t), process.FreeAddress(h.t)
	cmd := exec.Command(h.binary("recast-operator"),
		"--all-namespaces", "--leader-elect", "--leader-election-lease=1m", "--job-image="+image, // a busy machine stalls processes for seconds
		"--metrics-bind-address="+address, "--health-probe-bind-address=0", "--pages-bind-address="+pages)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+h.account("recast-system", "recast-operator"), "POD_NAMESPACE=recast-system")
	return single{process.Start(h.t, "recast-operator", cmd), h, "http://" + address + "/metrics", "http://" + pages}
}

func (h house) account(namespace, name string) string {
	h.t.Helper()
	const hours = 12
	token, err := h.plane.Client.CoreV1().ServiceAccounts(namespace).CreateToken(h.t.Context(), name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(hours * 60 * 60))}}, metav1.CreateOptions{})
	mustDo(h.t, err)
	file := filepath.Join(h.t.TempDir(), name)
	writeFile(h.t, file, fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: e2e, user: {token: %s}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
`, h.plane.Admin.Host, base64.StdEncoding.EncodeToString(h.plane.CA.PEM), token.Status.Token))
	return file
}

// reading is what the operator says of itself: values by name and labels.
type reading map[string]float64

// read scrapes the metrics of the operator; empty if it does not answer.
func (s single) read() reading {
	s.h.t.Helper()
	r := reading{}
	request := must(http.NewRequestWithContext(s.h.t.Context(), http.MethodGet, s.metrics, http.NoBody))(s.h.t)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return r
	}
	defer answer.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(answer.Body); err != nil {
		return r
	}
	for line := range strings.Lines(text.String()) {
		at := strings.LastIndex(line, " ")
		if value, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); err == nil && line[0] != '#' {
			r[line[:at]] = value
		}
	}
	return r
}

// sum adds up a metric over all labels, or over those sets of labels in which all of these are: code="403".
func (r reading) sum(name string, labels ...string) (total float64) {
next:
	for key, value := range r {
		if base, _, _ := strings.Cut(key, "{"); base != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(key, l) {
				continue next
			}
		}
		total += value
	}
	return total
}

// peakMiB is the most memory that the operator has ever had.
func (s single) peakMiB() int {
	s.h.t.Helper()
	status := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID())))(s.h.t)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib := must(strconv.Atoi(strings.Fields(rest)[0]))(s.h.t)
	return kib >> 10
}

func (s single) settle() reading {
	s.h.t.Helper()
	const quiet = 3 * time.Second
	last, since := -1.0, time.Now()
	s.h.until("the operator has nothing to do", func() bool {
		if now := s.read().sum("controller_runtime_reconcile_total"); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > quiet
	})
	return s.read()
}

// get reads an object or a list of the namespace from the API server.
func (h house) get(path string, into any) {
	h.t.Helper()
	b, err := h.plane.Client.RESTClient().Get().AbsPath("/apis/recast.dev/v1alpha1/namespaces/" + h.namespace + "/" + path).DoRaw(h.t.Context())
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		h.t.Fatalf("read %s: %v", path, err)
	}
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	mustDo(t, os.WriteFile(name, []byte(text), 0o600))
}

// invalidSpecs are refused by the API server, with the field and the remedy, or by the operator in a condition.
func (h house) invalidSpecs() {
	t := h.t
	for name, c := range map[string]struct{ line, says string }{
		"two-sources":   {"source: {configMap: {name: a}, git: {url: 'https://example.com/a'}}", "give exactly one of configMap, git and oci"},
		"no-source":     {"source: {}", "give exactly one of configMap, git and oci"},
		"git-http":      {"source: {git: {url: 'http://git.example/a'}}", "url: is without TLS: use https or ssh"},
		"git-branch":    {"source: {git: {url: 'http://git.example/a', insecure: true}}", "name the whole hash of a commit in ref"},
		"git-password":  {"source: {git: {url: 'https://flux:password@git.example/a'}}", "url: has a user or a password"},
		"ssh-password":  {"source: {git: {url: 'ssh://git:password@git.example/a'}}", "url: has a user or a password"},
		"oci-tag":       {"source: {oci: {reference: 'registry.example/a:latest', insecure: true}}", "name the artifact's digest in reference"},
		"oci-password":  {"source: {oci: {reference: 'flux:password@registry.example/a:latest'}}", "reference: has a user or a password"},
		"version":       {"talosVersion: latest", "spec.talosVersion"},
		"version-alone": {"talosVersion: v1.13.9", "talosVersion: needs lock: Update"},
		"duration":      {"windows: [{schedule: '0 22 * * 6', duration: 1s}]", "duration: between 1m and 168h"},
		"outside":       {"secrets: {proxmoxToken: {name: a}, talosconfig: {name: a}, kubeconfig: {name: a}, files: [{name: a, key: b, path: ../c}]}", "path: is relative to recast.yaml"},
	} {
		lines := []string{c.line}
		if name == "version-alone" {
			lines = append(lines, "lock: Source")
		}
		out, err := h.try(h.cluster(name, lines...), "apply --server-side -f -")
		if err == nil || !strings.Contains(out, c.says) {
			t.Errorf("%s: %v\n%s", c.line, err, out)
		}
	}
	h.apply(h.cluster("schedule", "drift: {schedule: every day}"))
	h.until("the operator says which field is invalid", func() bool {
		return strings.HasPrefix(h.ready("taloscluster/schedule"), "False InvalidSpec spec.drift.schedule:")
	})
	h.kubectl("wait --for=condition=Stalled taloscluster/schedule --timeout=1m")
	h.apply(h.cluster("no-files"))
	h.until("the operator misses the ConfigMap", func() bool {
		return strings.HasPrefix(h.ready("taloscluster/no-files"), "False SourceUnavailable spec.source.configMap.name:")
	})
	if jobs := h.kubectl("get jobs -o name"); jobs != "" && jobs != "No resources found in invalid namespace." {
		t.Errorf("Jobs were begun: %s", jobs)
	}
}

// secrets are missing, then a token without privileges is there, then the right one.
func (h house) secrets() {
	t := h.t
	l := h.startLab()
	h.apply(configMapWithLock(t, l, "prod"))
	h.apply(h.cluster("prod", "lock: Source"))
	h.until("it is stalled for want of the Secret", func() bool {
		return strings.HasPrefix(h.ready("taloscluster/prod"), "False Configuration spec.secrets.proxmoxToken: the Secret prod has no key token")
	})
	h.typed("kubectl wait --for=condition=Stalled taloscluster/prod --timeout=10m")
	h.apply(secret(t, l, "prod", l.variable("POOR_TOKEN")))
	h.typed("kubectl annotate taloscluster prod recast.dev/check-requested=again --overwrite")
	h.until("doctor says which privileges are missing", func() bool {
		text := h.ready("taloscluster/prod")
		return strings.HasPrefix(text, "False ") && strings.Contains(text, "doctor: ") && strings.Contains(text, "on /vms: missing")
	})
	fmt.Fprintf(t.Output(), "%s\n", h.ready("taloscluster/prod"))
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.kubectl("annotate taloscluster prod recast.dev/check-requested=once-more --overwrite")
	h.kubectl("wait --for=condition=Ready taloscluster/prod --timeout=10m")
	h.until("the old reasons are gone", func() bool { return h.field("taloscluster/prod", "{.status.check.problems}") == "" })
	h.typed("kubectl delete taloscluster prod")
	if out, code := l.run(t, "drift"); code != 0 {
		t.Errorf("recast drift after the TalosCluster was deleted: %d\n%s", code, out)
	}
}

// leave: a TalosCluster is deleted before its turn in a FleetRoll, which stops. Another one is deleted while it is rolled:
// its Job finishes the node in progress, and nothing is left.
func (h house) leave() {
	t := h.t
	h.apply(h.cluster("other"))
	h.apply(`
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {name: autumn}
spec: {stages: [{name: all, selector: {}, approval: Manual}]}
`)
	h.kubectl("wait --for=jsonpath='{.status.members[0].cluster}'=other fleetroll/autumn --timeout=2m")
	h.kubectl("delete taloscluster other")
	h.kubectl(`patch fleetroll autumn --type=merge -p '{"spec":{"approvedStages":["all"]}}'`)
	h.kubectl("wait --for=jsonpath='{.status.failed}'=1 fleetroll/autumn --timeout=1m")
	l := h.startLab("--talos-version", "v1.13.8")
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.apply(files(t, l, "prod", "version: v1.13.8", "version: v1.13.9"))
	h.apply(h.cluster("prod", "lock: Update", "rolls: {approval: Automatic}"))
	h.until("the Job of prod-1 runs", func() bool { return h.runs(h.namespace, "prod-1-roll-") })
	h.typed("kubectl delete taloscluster prod")
	h.until("all that was the cluster's is gone", func() bool {
		return h.kubectl("get imagerolls,jobs,roles -o name --ignore-not-found") == ""
	})
	if out, code := l.run(t, "lab check --dir ."); code != 0 {
		t.Errorf("recast lab check: exit code %d\n%s", code, out)
	}
}

func configMapWithLock(t *testing.T, l lab, name string) string {
	t.Helper()
	return strings.Replace(files(t, l, name), "data:\n", "data:\n  recast.lock: |\n    "+strings.ReplaceAll(strings.TrimSpace(l.file(t, "recast.lock")), "\n", "\n    ")+"\n", 1)
}

// window: a roll waits for its window, and goes on after that has closed.
func (h house) window() {
	t := h.t
	l := h.startLab("--talos-version", "v1.13.8", "--speed", "3")
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.apply(files(t, l, "prod", "version: v1.13.8", "version: v1.13.9"))
	closed := time.Now().UTC().Add(-2 * time.Hour)
	window := func(at time.Time) string {
		return fmt.Sprintf("windows: [{schedule: '%d %d * * *', duration: 1m}]", at.Minute(), at.Hour())
	}
	h.apply(h.cluster("prod", "lock: Update", "rolls: {approval: Automatic}", window(closed)))
	h.kubectl("wait --for=create imageroll/prod-1 --timeout=10m")
	h.kubectl("wait --for=jsonpath='{.status.phase}'=AwaitingWindow imageroll/prod-1 --timeout=10m")
	time.Sleep(5 * time.Second)
	if h.runs(h.namespace, "prod-1-roll-") || h.field("imageroll/prod-1", "{.status.started}") != "" {
		t.Errorf("it was begun outside of its window")
	}
	opens := time.Now().UTC().Add(time.Minute)
	h.apply(h.cluster("prod", "lock: Update", "rolls: {approval: Automatic}", window(opens)))
	h.until("it begins", func() bool { return h.field("imageroll/prod-1", "{.status.started}") != "" })
	began, err := time.Parse(time.RFC3339, h.field("imageroll/prod-1", "{.status.started}"))
	if err != nil || began.Minute() != opens.Minute() {
		t.Errorf("it began at %v, the window was open in the minute of %v: %v", began, opens, err)
	}
	h.kubectl("wait --for=condition=Ready imageroll/prod-1 --timeout=20m")
	ended, err := time.Parse(time.RFC3339, h.field("imageroll/prod-1", "{.status.ended}"))
	if err != nil || ended.Before(opens.Truncate(time.Minute).Add(time.Minute)) {
		t.Errorf("it ended at %v, before the window of %v had closed: %v", ended, opens, err)
	}
	l.inSync(t, "v1.13.9")
}

// secret has what recast needs to reach a lab.
func secret(t *testing.T, l lab, name, token string) string {
	t.Helper()
	encode := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s}
data: {token: %s, talosconfig: %s, kubeconfig: %s}
`, name, encode(token), encode(l.file(t, "talosconfig")), encode(l.file(t, "kubeconfig")))
}

// files has recast.yaml and the schematics of a lab, and recast.lock if that is to come from there.
func files(t *testing.T, l lab, name string, replace ...string) string {
	t.Helper()
	data := map[string]string{"recast.yaml": strings.NewReplacer(replace...).Replace(l.file(t, "recast.yaml"))}
	entries := must(os.ReadDir(filepath.Join(l.dir, "schematics")))(t)
	for _, e := range entries {
		data["schematics__"+e.Name()] = l.file(t, "schematics/"+e.Name())
	}
	return configMap(t, name, data)
}

func configMap(t *testing.T, name string, data map[string]string) string {
	t.Helper()
	return string(must(yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": data}))(t))
}

// cluster is the TalosCluster of the documentation, of that name, with further lines of its spec.
func (h house) cluster(name string, more ...string) string {
	h.t.Helper()
	const begin, end = "apiVersion: recast.dev/v1alpha1\nkind: TalosCluster\n", "```"
	_, text, found := strings.Cut(h.page, begin)
	text, _, closed := strings.Cut(text, end)
	if !found || !closed {
		h.t.Fatal("docs/howto/operator.md has no TalosCluster")
	}
	text = strings.NewReplacer("name: prod\n", "name: "+name+"\n", "name: prod}", "name: "+name+"}", "name: prod,", "name: "+name+",").Replace(text)
	for _, line := range append([]string{"windows: []"}, more...) {
		key, _, _ := strings.Cut(line, ":")
		var kept []string
		for l := range strings.Lines(text) { // a key of the page is replaced
			if !strings.HasPrefix(l, "  "+key+":") {
				kept = append(kept, l)
			}
		}
		text = strings.Join(kept, "") + "  " + line + "\n"
	}
	return begin + text
}
