package contract

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// taken counts the VMIDs used on the real server.
var taken atomic.Int64

// realPlace reads the real server's settings; false if the environment names none.
func realPlace(t *testing.T) (place, bool) {
	t.Helper()
	p := place{
		endpoint: strings.TrimSuffix(os.Getenv("PVE_ENDPOINT"), "/"), token: os.Getenv("PVE_TOKEN"), poor: os.Getenv("PVE_POOR_TOKEN"),
		node: os.Getenv("PVE_NODE"), node2: os.Getenv("PVE_NODE2"), storage: os.Getenv("PVE_STORAGE"), isoStorage: os.Getenv("PVE_ISO_STORAGE"),
		sharedStorage: os.Getenv("PVE_SHARED_STORAGE"), bridge: cmp.Or(os.Getenv("PVE_BRIDGE"), "vmbr0"), pool: os.Getenv("PVE_POOL"), taken: &taken,
	}
	if p.endpoint == "" {
		return p, false
	}
	for name, value := range map[string]string{
		"PVE_TOKEN": p.token, "PVE_NODE": p.node, "PVE_STORAGE": p.storage, "PVE_ISO_STORAGE": p.isoStorage,
	} {
		if value == "" {
			t.Fatalf("%s is not set; PVE_ENDPOINT alone is not enough", name)
		}
	}
	vmids := cmp.Or(os.Getenv("PVE_VMIDS"), "90000-90099")
	if n, err := fmt.Sscanf(vmids, "%d-%d", &p.first, &p.last); n != 2 || err != nil || p.first < 100 || p.last < p.first {
		t.Fatalf("PVE_VMIDS is %q, not a range such as 90000-90099", vmids)
	}
	return p, true
}

// swept is the result of the check before the first test: nothing is made in a range with
// foreign VMs.
var swept struct {
	once    sync.Once
	done    bool
	alien   string       // foreign guests in the range
	volumes map[int]bool // VMIDs of the range without a VM, but with volumes
}

func newReal(t *testing.T, p place) *server {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: pinned(os.Getenv("PVE_FINGERPRINT")), TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 3 * time.Second}
	s := &server{t: t, place: p, http: &http.Client{Transport: transport, Timeout: 2 * time.Minute}}
	t.Cleanup(func() {
		s.removeAll()
		transport.CloseIdleConnections()
	})
	s.client = s.connect(s.trusting())
	swept.once.Do(s.sweep)
	if !swept.done {
		t.Fatal("what is in PVE_VMIDS could not be read: the first failure says why")
	}
	if swept.alien != "" {
		t.Fatalf("%s is in PVE_VMIDS, but these tests did not make it: give them a range of their own", swept.alien)
	}
	return s
}

// pinned accepts only the certificate with that SHA-256 fingerprint; "" uses the system's authorities.
func pinned(fingerprint string) *tls.Config {
	if fingerprint == "" {
		return &tls.Config{}
	}
	want := strings.ToLower(strings.ReplaceAll(fingerprint, ":", ""))
	return &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection verifies it
		VerifyConnection: func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if got := hex.EncodeToString(sum[:]); got != want {
				return errors.New("the server's certificate has the fingerprint " + got)
			}
			return nil
		},
	}
}

// isOurs says whether the tests or recast made a VM: the descriptions of parking VMs and
// claims contain their cluster, even if a test has damaged the record's beginning.
func (s *server) isOurs(node string, id int) bool {
	s.t.Helper()
	config := object(s.t, s.get("/nodes/"+node+"/qemu/"+itoa(id)+"/config"))
	description := text(config["description"])
	return strings.Contains(description, marker) || strings.Contains(description, `cluster":"`+exchangeCluster+`"`)
}

// sweep removes the VMs and ISOs of a killed run, unless the range contains a foreign
// guest. The origin of volumes without a VM is unknown: they are left alone, and their
// VMIDs are not used.
func (s *server) sweep() {
	s.t.Helper()
	left := s.left()
	if swept.alien == "" {
		for _, id := range left {
			s.t.Logf("remove VM %d, which a run before has left", id)
			s.remove(id)
		}
		s.sweepISOs()
		s.findVolumes()
	}
	swept.done = true
}

// left are our VMs in the range.
func (s *server) left() []int {
	s.t.Helper()
	var left []int
	for _, o := range s.rows("/cluster/resources", "type=vm") {
		var id int
		if _, err := fmt.Sscan(text(o["vmid"]), &id); err != nil || id < s.place.first || id > s.place.last {
			continue
		}
		if text(o["type"]) != "qemu" || !s.isOurs(text(o["node"]), id) {
			swept.alien = fmt.Sprintf("guest %d (%s)", id, text(o["name"]))
			return nil
		}
		left = append(left, id)
	}
	return left
}

func (s *server) sweepISOs() {
	s.t.Helper()
	if !slices.Contains(s.privileges("/storage/"+s.place.isoStorage), "Datastore.Allocate") {
		return
	}
	for _, row := range s.rows("/nodes/" + s.place.node + "/storage/" + s.place.isoStorage + "/content") {
		_, name, _ := strings.Cut(text(row["volid"]), ":")
		if volid := s.place.isoStorage + ":" + name; strings.HasPrefix(name, "iso/"+isoPrefix) || strings.HasPrefix(name, "import/"+isoPrefix) {
			s.t.Logf("remove %s, which a run before has left", volid)
			s.removeISO(volid)
		}
	}
}

func (s *server) findVolumes() {
	s.t.Helper()
	swept.volumes = map[int]bool{}
	for _, storage := range []string{s.place.storage, s.place.sharedStorage} {
		if storage == "" {
			continue
		}
		for _, o := range s.rows("/nodes/" + s.place.node + "/storage/" + storage + "/content") {
			if id, err := strconv.Atoi(text(o["vmid"])); err == nil && id >= s.place.first && id <= s.place.last && !swept.volumes[id] {
				s.t.Logf("leave VMID %d alone: no VM has it, but %s is there", id, text(o["volid"]))
				swept.volumes[id] = true
			}
		}
	}
}
