package contract

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

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

// config is a VM's configuration, everything as text.
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

// wantStatus requires a VM to be "running" or "stopped".
func (s *server) wantStatus(id int, want string) {
	s.t.Helper()
	same(s.t, any(want), object(s.t, s.get(s.vm(id, "status/current")))["status"])
}

// volumes lists the volids with a VMID on a storage of the node, sorted.
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

// ownISO removes a volume at the end.
func (s *server) ownISO(volid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isos = append(s.isos, volid)
}

// privileges are the token's at a path.
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
	if r := s.clean(http.MethodPut, path+"/config", "protection=0"); r.Code != http.StatusOK {
		s.t.Errorf("clean up VM %d: %s", id, r.Status)
	}
	s.cleanWait(s.clean(http.MethodPost, path+"/status/stop"))
	s.cleanWait(s.clean(http.MethodDelete, path, "destroy-unreferenced-disks=1", "purge=1"))
}

func (s *server) underHA(path string) bool {
	current, _ := s.clean(http.MethodGet, path+"/status/current").Data.(map[string]any)
	ha, _ := current["ha"].(map[string]any)
	return text(ha["managed"]) == "1"
}

// where finds the node of a VM.
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
	if err != nil {
		s.t.Errorf("clean up: %s %s: %v", method, path, err)
	}
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
	if got.Status != status || fmt.Sprint(trimmed(got.Errors)) != fmt.Sprint(trimmed(params)) {
		t.Errorf("got  %s %v\nwant %s %v", got.Status, got.Errors, status, params)
	}
}

func trimmed(params map[string]string) map[string]string {
	out := map[string]string{}
	for name, problem := range params {
		out[name] = strings.TrimSpace(problem)
	}
	return out
}
