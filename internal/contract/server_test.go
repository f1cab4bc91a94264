// Every process of these tests does its own handshakes, and a third of their cost would be
// ML-KEM, which is not under test.
//
//go:debug tlsmlkem=0

package contract

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestMain makes garbage collection rarer: each test's datacentre is dropped as a whole,
// and collecting would take a quarter of the time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	m.Run()
}

// slice selects a few of many similar cases in a short run; the full suite runs all.
type slice struct{ seen int }

func (s *slice) next() bool {
	s.seen++
	return !testing.Short() || s.seen%32 == 1
}

func (s *slice) story(t *testing.T, name string, n needs, test func(t *testing.T, s *server)) {
	t.Helper()
	if s.next() {
		story(t, name, n, test)
	}
}

func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make stories")
	}
}

// inOrder yields cases by name, so that short runs always select the same.
func inOrder[V any](cases map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			if !yield(name, cases[name]) {
				return
			}
		}
	}
}

// TestSuite checks the suite's own promise: everything that it makes is removed, even volumes that no VM refers to.
func TestSuite(t *testing.T) {
	story(t, "removes what it made", 0, func(t *testing.T, s *server) {
		id := s.newVM("scsi0="+s.place.storage+":1,serial=a", "protection=1", "kvm=0")
		s.start(id)
		orphan := s.newVM("scsi0=" + s.place.storage + ":1")
		s.taskOK(http.MethodPost, s.vm(orphan, "move_disk"), "disk=scsi0", "target-vmid="+itoa(id), "target-disk=scsi1")
		s.removeAll()
		for _, vm := range []int{id, orphan} {
			node, found := s.where(vm)
			must.Hold(t, !found, "VM %d is still on %s", vm, node)
			left := s.volumes(s.place.storage, vm)
			must.Hold(t, len(left) == 0, "VM %d has left %q", vm, left)
		}
	})
}

// needs are the requirements of a test; combine them with |.
type needs uint8

const (
	secondNode    needs = 1 << iota // another node of the same cluster
	sharedStorage                   // a storage for disks and ISOs that both nodes see
	poorToken                       // a token with privilege separation and without permissions
	pool                            // a pool to which the token may add VMs
	deleteISOs                      // Datastore.Allocate on the ISO storage
	simulated                       // faults that only the simulator has: no quorum, a host without power
)

// server is the Proxmox VE under test.
type server struct {
	t      *testing.T
	place  place
	http   *http.Client
	client *pve.Client // recast's own
	sim    *simulator  // nil on a real server

	mu   sync.Mutex
	made []int    // VMIDs, in order
	isos []string // volids
}

// place is the part of the server that belongs to the tests.
type place struct {
	endpoint, token, poor string // token and poor as "user@realm!id=uuid"
	node, node2           string
	storage               string // for disks
	isoStorage            string
	sharedStorage         string
	bridge, pool          string
	first, last           int // VMIDs
	taken                 *atomic.Int64
}

// next cycles through the range, so that a test does not meet leftovers of the previous
// one under the same number: tasks, and the cluster's cached state.
func (p place) next() int { return p.first + int((p.taken.Add(1)-1)%int64(p.last-p.first+1)) }

// lacks lists the requirements that the place does not meet, by name.
func (p place) lacks(n needs) []string {
	var out []string
	for _, w := range []struct {
		need needs
		is   bool
		name string
	}{
		{secondNode, p.node2 != "", "PVE_NODE2"},
		{sharedStorage, p.sharedStorage != "", "PVE_SHARED_STORAGE"},
		{poorToken, p.poor != "", "PVE_POOR_TOKEN"},
		{pool, p.pool != "", "PVE_POOL"},
	} {
		if n&w.need != 0 && !w.is {
			out = append(out, w.name)
		}
	}
	return out
}

// run gives a test its server: a simulated one of its own in a bubble, or the real one if
// the environment names one that meets the test's needs.
func run(t *testing.T, n needs, test func(t *testing.T, s *server)) {
	t.Helper()
	p, isReal := realPlace(t)
	if !isReal {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(t, newSimulated(t)) })
		return
	}
	if lacks := p.lacks(n); len(lacks) > 0 {
		t.Skipf("needs %s", strings.Join(lacks, ", "))
	}
	if n&simulated != 0 {
		t.Skip("needs the simulator: it injects faults")
	}
	s := newReal(t, p)
	if n&deleteISOs != 0 && !slices.Contains(s.privileges("/storage/"+p.isoStorage), "Datastore.Allocate") {
		t.Skipf("needs Datastore.Allocate on /storage/%s", p.isoStorage)
	}
	test(t, s)
}

// story is one test of that name; see run.
func story(t *testing.T, name string, n needs, test func(t *testing.T, s *server)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { run(t, n, test) })
}

func same(t *testing.T, want, got any, options ...cmp.Option) {
	t.Helper()
	must.Equal(t, "value", want, got, options...)
}

// wantPrefix requires a text to begin with want, wantMatch to match a pattern.
func wantPrefix(t *testing.T, want, got string) {
	t.Helper()
	must.Hold(t, strings.HasPrefix(got, want), "%q, want %q…", got, want)
}

func wantMatch(t *testing.T, pattern, got string) {
	t.Helper()
	must.Hold(t, regexp.MustCompile(pattern).MatchString(got), "%q, want %s", got, pattern)
}

func wantError(t *testing.T, want, got error) {
	t.Helper()
	must.Hold(t, errors.Is(got, want), "error is %v, want %v", got, want)
}

// wantTook requires the time since then to be in a range; to is 0 where there is no limit.
func wantTook(t *testing.T, began time.Time, from, to time.Duration) {
	t.Helper()
	took := time.Since(began)
	must.Hold(t, took >= from && (to <= 0 || took <= to), "after %v, want %v to %v", took, from, to)
}

// skipf skips a test that is impossible on the real server or with its token. On the
// simulator it must not be used: a test that is skipped in a bubble passes.
func (s *server) skipf(format string, args ...any) {
	s.t.Helper()
	if s.sim != nil {
		s.t.Fatalf("left out on the simulator: "+format, args...)
	}
	s.t.Skipf(format, args...)
}

type reply struct {
	Status  string // "500 no options specified"
	Code    int
	Message string
	Errors  map[string]string
	Data    any
	Body    []byte
}

func (s *server) do(method, path string, form ...string) reply {
	s.t.Helper()
	return s.as(s.place.token, method, path, form...)
}

func (s *server) poor(method, path string, form ...string) reply {
	s.t.Helper()
	return s.as(s.place.poor, method, path, form...)
}

// as sends a form with any token; "" sends none.
func (s *server) as(token, method, path string, form ...string) reply {
	s.t.Helper()
	return s.send(s.form(s.t.Context(), token, method, path, form...))
}

// tryAfter is do after the end of the test's context.
func (s *server) tryAfter(method, path string, form ...string) (reply, error) {
	return s.try(s.form(context.WithoutCancel(s.t.Context()), s.place.token, method, path, form...))
}

func (s *server) form(ctx context.Context, token, method, path string, form ...string) *http.Request {
	s.t.Helper()
	values := url.Values{}
	for _, f := range form {
		name, value, _ := strings.Cut(f, "=")
		values.Add(name, value)
	}
	if method != http.MethodGet && method != http.MethodDelete {
		return s.request(token, method, path, "application/x-www-form-urlencoded", []byte(values.Encode())).WithContext(ctx)
	}
	if len(values) > 0 {
		path += "?" + values.Encode()
	}
	return s.request(token, method, path, "", nil).WithContext(ctx)
}

// raw sends any body with the token.
func (s *server) raw(method, path, contentType string, body []byte) reply {
	s.t.Helper()
	return s.send(s.request(s.place.token, method, path, contentType, body))
}

// request makes a request without sending it; path is below /api2/json.
func (s *server) request(token, method, path, contentType string, body []byte) *http.Request {
	s.t.Helper()
	req := must.Get(http.NewRequestWithContext(s.t.Context(), method, s.place.endpoint+"/api2/json"+path, bytes.NewReader(body)))(s.t)
	if token != "" {
		req.Header.Set("Authorization", "PVEAPIToken="+token)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	return req
}

// send sends a request and reads the answer, which is JSON, the plain text of an error of
// the HTTP server itself, or empty.
func (s *server) send(req *http.Request) reply {
	s.t.Helper()
	r, err := s.try(req)
	must.Be(s.t, err == nil, "%s %s: %v", req.Method, req.URL.Path, err)
	return r
}

// try is send for a request that may get no answer.
func (s *server) try(req *http.Request) (reply, error) {
	res, err := s.http.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = res.Body.Close() }()
	out := reply{Status: res.Status, Code: res.StatusCode}
	if out.Body, err = io.ReadAll(res.Body); err != nil {
		return out, err
	}
	var answer struct {
		Message string
		Errors  map[string]string
		Data    any
	}
	if kind := res.Header.Get("Content-Type"); len(out.Body) > 0 && strings.HasPrefix(kind, "application/json") {
		if err := json.Unmarshal(out.Body, &answer); err != nil {
			return out, fmt.Errorf("%s: %w: %.200s", res.Status, err, out.Body)
		}
	}
	out.Message, out.Errors, out.Data = answer.Message, answer.Errors, answer.Data
	return out, nil
}

// get reads, and fails the test on an error.
func (s *server) get(path string, form ...string) any {
	s.t.Helper()
	r := s.do(http.MethodGet, path, form...)
	must.Be(s.t, r.Code == http.StatusOK, "GET %s: %s %s", path, r.Status, r.Body)
	return r.Data
}

// put makes a synchronous change, and fails the test on an error.
func (s *server) put(path string, form ...string) {
	s.t.Helper()
	r := s.do(http.MethodPut, path, form...)
	must.Be(s.t, r.Code == http.StatusOK, "PUT %s %q: %s %s", path, form, r.Status, r.Body)
}

type ended struct {
	UPID string
	Exit string // "OK", "WARNINGS: 1", or the error
	Log  []string
}

// task sends a form and waits for the task that it starts.
func (s *server) task(method, path string, form ...string) ended {
	s.t.Helper()
	return s.wait(s.do(method, path, form...))
}

func (s *server) taskOK(method, path string, form ...string) ended {
	s.t.Helper()
	e := s.task(method, path, form...)
	must.Be(s.t, e.Exit == "OK", "%s %s %q: task ended with %q: %q", method, path, form, e.Exit, e.Log)
	return e
}

// wait waits for the task whose UPID is the answer.
func (s *server) wait(r reply) ended {
	s.t.Helper()
	upid, ok := r.Data.(string)
	must.Be(s.t, ok && strings.HasPrefix(upid, "UPID:"), "no task: %s %s", r.Status, r.Body)
	path := "/nodes/" + strings.Split(upid, ":")[1] + "/tasks/" + escape(upid)
	for begun := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		status := object(s.t, s.get(path+"/status"))
		if status["status"] == "stopped" {
			return ended{UPID: upid, Exit: text(status["exitstatus"]), Log: s.log(path)}
		}
		must.Be(s.t, time.Since(begun) <= 5*time.Minute, "task %s still runs after five minutes", upid)
	}
}

func (s *server) log(path string) []string {
	s.t.Helper()
	var lines []string
	for _, row := range s.rows(path+"/log", "limit=500") {
		lines = append(lines, text(row["t"]))
	}
	return lines
}

// kind is the task's type: "qmstart".
func (e ended) kind() string { return strings.Split(e.UPID, ":")[5] }

func (s *server) rows(path string, form ...string) (out []map[string]any) {
	s.t.Helper()
	for _, row := range list(s.t, s.get(path, form...)) {
		out = append(out, object(s.t, row))
	}
	return out
}

func object(t *testing.T, data any) map[string]any {
	t.Helper()
	o, ok := data.(map[string]any)
	must.Be(t, ok, "not an object: %v", data)
	return o
}

func list(t *testing.T, data any) []any {
	t.Helper()
	l, ok := data.([]any)
	must.Be(t, ok, "not a list: %v", data)
	return l
}

// text is a scalar of an answer: Proxmox sends numbers as numbers or strings, at will.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case bool:
		return map[bool]string{true: "1", false: "0"}[v]
	}
	return fmt.Sprint(v)
}

// escape escapes a name for one segment of a path.
func escape(name string) string { return url.PathEscape(name) }

// marker is in the description of every VM that the tests make.
const marker = "made by the contract tests of recast, which remove it"

// freeID takes a VMID of the range without a VM and without leftovers.
func (s *server) freeID() int {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.place.last - s.place.first + 1 {
		id := s.place.next()
		if slices.Contains(s.made, id) || s.sim == nil && swept.volumes[id] {
			continue
		}
		if r := s.do(http.MethodGet, "/cluster/nextid", "vmid="+itoa(id)); r.Code == http.StatusOK {
			s.made = append(s.made, id)
			return id
		}
	}
	s.t.Fatalf("no free VMID in %d-%d", s.place.first, s.place.last)
	return 0
}

// newVM makes a VM on the node: small, without disks unless form has some, and able to
// start without KVM. It is removed at the end.
func (s *server) newVM(form ...string) int {
	s.t.Helper()
	return s.newVMOn(s.place.node, form...)
}

func (s *server) newVMOn(node string, form ...string) int {
	s.t.Helper()
	id := s.freeID()
	s.taskOK(http.MethodPost, "/nodes/"+node+"/qemu", marked(id, form...)...)
	return id
}

// marked is the form of a create call for a VM that the tests may remove. form takes precedence.
func marked(id int, form ...string) []string {
	all := []string{"vmid=" + itoa(id)}
	for _, d := range []string{"name=recast-contract-" + itoa(id), "description=" + marker, "memory=64", "kvm=0", "scsihw=virtio-scsi-pci"} {
		key, _, _ := strings.Cut(d, "=")
		if !slices.ContainsFunc(form, func(f string) bool { return strings.HasPrefix(f, key+"=") }) {
			all = append(all, d)
		}
	}
	return append(all, form...)
}

// vm is the path of a VM's resource on the node; what may be "".
func (s *server) vm(id int, what string) string {
	path := "/nodes/" + s.place.node + "/qemu/" + itoa(id)
	if what == "" {
		return path
	}
	return path + "/" + what
}

func (s *server) config(id int) map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for key, value := range object(s.t, s.get(s.vm(id, "config"))) {
		out[key] = text(value)
	}
	return out
}

func (s *server) digest(id int) string {
	s.t.Helper()
	return s.config(id)["digest"]
}

func (s *server) volid(id int, key string) string {
	s.t.Helper()
	volid, _, _ := strings.Cut(s.config(id)[key], ",")
	return volid
}

type pendingRow struct {
	Value, Pending string
	Delete         string // "1", or "2" with force
}

func (s *server) pending(id int) map[string]pendingRow {
	s.t.Helper()
	out := map[string]pendingRow{}
	for _, o := range s.rows(s.vm(id, "pending")) {
		out[text(o["key"])] = pendingRow{text(o["value"]), text(o["pending"]), text(o["delete"])}
	}
	return out
}

func (s *server) start(id int) {
	s.t.Helper()
	s.taskOK(http.MethodPost, s.vm(id, "status/start"))
}

func (s *server) stop(id int) {
	s.t.Helper()
	s.taskOK(http.MethodPost, s.vm(id, "status/stop"))
}

func (s *server) wantStatus(id int, want string) {
	s.t.Helper()
	same(s.t, any(want), object(s.t, s.get(s.vm(id, "status/current")))["status"])
}

func (s *server) volumes(storage string, owner int) []string {
	s.t.Helper()
	var out []string
	path := "/nodes/" + s.place.node + "/storage/" + storage + "/content"
	for _, row := range s.rows(path, "content=images", "vmid="+itoa(owner)) {
		out = append(out, text(row["volid"]))
	}
	slices.Sort(out)
	return out
}

// isoPrefix is the prefix of the names of the tests' ISOs.
const isoPrefix = "recast-contract-"

// isoName makes a name for an ISO, which is removed from the ISO storage at the end if the token may do that.
func (s *server) isoName() string {
	s.t.Helper()
	name := isoPrefix + strings.ToLower(rand.Text()[:10]) + ".iso"
	s.ownISO(s.place.isoStorage + ":iso/" + name)
	return name
}

func (s *server) ownISO(volid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isos = append(s.isos, volid)
}

func (s *server) privileges(path string) []string {
	s.t.Helper()
	var out []string
	for _, held := range object(s.t, s.get("/access/permissions", "path="+path)) {
		for privilege := range object(s.t, held) {
			out = append(out, privilege)
		}
	}
	slices.Sort(out)
	return out
}

// removeAll removes what the test has made, the latest first.
func (s *server) removeAll() {
	s.mu.Lock()
	made, isos := slices.Clone(s.made), slices.Clone(s.isos)
	s.mu.Unlock()
	for _, id := range slices.Backward(made) {
		s.remove(id)
	}
	for _, volid := range isos {
		s.removeISO(volid)
	}
}

func (s *server) removeISO(volid string) {
	storage, _, _ := strings.Cut(volid, ":")
	r := s.clean(http.MethodDelete, "/nodes/"+s.place.node+"/storage/"+storage+"/content/"+escape(volid))
	if r.Code == http.StatusForbidden {
		s.t.Logf("%s may be left behind: %s", volid, r.Status)
		return
	}
	s.cleanWait(r)
}

// remove deletes one of our VMs on any node, with every volume that has its number. For
// volumes without a VM it first makes one.
func (s *server) remove(id int) {
	node, found := s.where(id)
	if !found {
		if node = s.place.node; !s.hasVolumes(id) {
			return
		}
		s.cleanWait(s.clean(http.MethodPost, "/nodes/"+node+"/qemu", marked(id)...))
	}
	path := "/nodes/" + node + "/qemu/" + itoa(id)
	if s.underHA(path) { // a stop would only ask its manager
		s.clean(http.MethodDelete, haResources+"/vm:"+itoa(id))
	}
	r := s.clean(http.MethodPut, path+"/config", "protection=0")
	must.Hold(s.t, r.Code == http.StatusOK, "clean up VM %d: %s", id, r.Status)
	s.cleanWait(s.clean(http.MethodPost, path+"/status/stop"))
	s.cleanWait(s.clean(http.MethodDelete, path, "destroy-unreferenced-disks=1", "purge=1"))
}

func (s *server) underHA(path string) bool {
	current, _ := s.clean(http.MethodGet, path+"/status/current").Data.(map[string]any)
	ha, _ := current["ha"].(map[string]any)
	return text(ha["managed"]) == "1"
}

func (s *server) where(id int) (node string, found bool) {
	for _, node := range []string{s.place.node, s.place.node2} {
		if node == "" {
			continue
		}
		if r := s.clean(http.MethodGet, "/nodes/"+node+"/qemu/"+itoa(id)+"/config"); r.Code == http.StatusOK {
			return node, true
		}
	}
	return "", false
}

func (s *server) hasVolumes(id int) bool {
	for _, storage := range []string{s.place.storage, s.place.sharedStorage} {
		if storage == "" {
			continue
		}
		r := s.clean(http.MethodGet, "/nodes/"+s.place.node+"/storage/"+storage+"/content", "vmid="+itoa(id))
		rows, _ := r.Data.([]any)
		for _, row := range rows {
			// Files have no owner and are always listed.
			if o, ok := row.(map[string]any); ok && text(o["vmid"]) == itoa(id) {
				return true
			}
		}
	}
	return false
}

// clean is do at the end of a test, after the end of its context.
func (s *server) clean(method, path string, form ...string) reply {
	r, err := s.tryAfter(method, path, form...)
	must.Hold(s.t, err == nil, "clean up: %s %s: %v", method, path, err)
	return r
}

func (s *server) cleanWait(r reply) {
	upid, ok := r.Data.(string)
	if !ok {
		s.t.Errorf("clean up: %s %s", r.Status, r.Body)
		return
	}
	path := "/nodes/" + strings.Split(upid, ":")[1] + "/tasks/" + escape(upid) + "/status"
	for range 600 {
		status, _ := s.clean(http.MethodGet, path).Data.(map[string]any)
		if status["status"] == "stopped" {
			switch exit := text(status["exitstatus"]); {
			case strings.HasPrefix(exit, "WARNINGS: "):
				s.t.Logf("clean up: %s: %s", upid, exit)
			case exit != "OK":
				s.t.Errorf("clean up: %s: %s", upid, exit)
			}
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	s.t.Errorf("clean up: %s still runs after two minutes", upid)
}

func itoa(n int) string { return strconv.Itoa(n) }

// wantRefusal compares an answer with that of Proxmox VE 9.2: its status line, and the errors of single parameters.
func wantRefusal(t *testing.T, got reply, status string, params map[string]string) {
	t.Helper()
	must.Hold(t, got.Status == status && fmt.Sprint(trimmed(got.Errors)) == fmt.Sprint(trimmed(params)),
		"got  %s %v\nwant %s %v", got.Status, got.Errors, status, params)
}

func trimmed(params map[string]string) map[string]string {
	out := map[string]string{}
	for name, problem := range params {
		out[name] = strings.TrimSpace(problem)
	}
	return out
}
