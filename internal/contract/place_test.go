package contract

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// simulator is a Proxmox cluster of three nodes, with fault injection.
type simulator struct {
	world    *world.World
	recorder *record.Recorder
	network  *network.Network
	requests *apidoctest.Requests
}

// wrong says that the test makes recast's client send an invalid parameter on purpose.
func (s *server) wrong(param string) {
	if s.sim != nil {
		s.sim.requests.Wrong(param)
	}
}

const (
	simToken = "contract@pve!suite"
	simPoor  = "contract@pve!poor"
	secret   = "5ec0ffee-c0de-4000-8000-000000000001"
)

// role is the role of the suite's token: what recast needs to roll by recreate, as in docs/notes/permissions.md, and
// nothing else. Tests request further privileges with holds.
func role() []string {
	var all []string
	for _, g := range documented("recreate") {
		all = append(all, g.privileges...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// granted is a role of permissions.md and the path that it is granted on.
type granted struct {
	role, path string
	privileges []string
}

var (
	permissions = sync.OnceValues(func() (string, error) {
		text, err := os.ReadFile("../../docs/notes/permissions.md")
		return string(text), err
	})
	modifies = regexp.MustCompile(`(?m)^pveum role modify (\S+) --append 1 --privs (\S+)$`)
	grants   = regexp.MustCompile(`(?m)^pveum acl modify (\S+) .*--roles (\S+)$`)
)

// documented are the commands for a strategy in permissions.md.
func documented(strategy string) []granted {
	text, err := permissions()
	if err != nil {
		panic(err)
	}
	_, section, _ := strings.Cut(text, "\n## To roll by "+strategy+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	privileges := map[string][]string{}
	for _, m := range modifies.FindAllStringSubmatch(section, -1) {
		privileges[m[1]] = strings.Split(m[2], ",")
	}
	var all []granted
	for _, m := range grants.FindAllStringSubmatch(section, -1) {
		all = append(all, granted{role: m[2], path: m[1], privileges: privileges[m[2]]})
	}
	return all
}

func newSimulated(t *testing.T) *server {
	t.Helper()
	w := world.New(world.Options{Cluster: "contract"})
	sim := &simulator{world: w, recorder: record.New(), network: network.Memory()}
	w.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "vztmpl", "import"}})
	w.AddStorage(world.Storage{ID: "data", Type: "dir", Content: []string{"images"}, Capacity: 100 << 30})
	w.AddStorage(world.Storage{ID: "nas", Type: "nfs", Shared: true, Content: []string{"images", "iso"}})
	w.AddRole("Contract", role()...)
	w.AddRole("DeletesISOs", append(role(), "Datastore.Allocate")...)
	w.AddPool("contract")
	for _, id := range []string{simToken, simPoor} {
		w.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	}
	w.Grant(world.ACL{Path: "/", Who: "contract@pve", Role: world.Administrator, Propagate: true})
	w.Grant(world.ACL{Path: "/", Who: simToken, Role: "Contract", Propagate: true})
	w.Grant(world.ACL{Path: "/storage/local", Who: simToken, Role: "DeletesISOs", Propagate: true})

	cert := apitest.NewCertificate(t, net.IPv4(127, 42, 9, 1), net.IPv4(127, 42, 9, 2), net.IPv4(127, 42, 9, 3))
	pool := x509.NewCertPool()
	pool.AddCert(cert.Leaf)
	var servers []*pveapi.Server
	for i, host := range []string{"pve1", "pve2", "pve3"} {
		w.AddHost(host)
		listener := must.Get(sim.network.Listen(fmt.Sprintf("127.42.9.%d:8006", i+1)))(t)
		api := pveapi.New(w, sim.recorder, host)
		api.Serve(listener, cert)
		servers = append(servers, api)
	}
	sim.requests = apidoctest.Check(t, sim.recorder)
	dialer := sim.network.Dialer()
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: pool}}
	s := &server{
		t: t, sim: sim, http: &http.Client{Transport: transport},
		place: place{
			endpoint: "https://127.42.9.1:8006", token: simToken + "=" + secret, poor: simPoor + "=" + secret,
			node: "pve1", node2: "pve2", storage: "data", isoStorage: "local", sharedStorage: "nas", bridge: "vmbr0", pool: "contract",
			first: 90000, last: 90099, taken: new(atomic.Int64),
		},
	}
	t.Cleanup(func() {
		s.removeAll()
		transport.CloseIdleConnections()
		w.Close()
		for _, api := range servers {
			if err := api.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	s.client = s.connect(s.trusting())
	return s
}

func (s *server) connect(o api.Options) *pve.Client {
	s.t.Helper()
	c := must.Get(pve.New(o))(s.t)
	s.t.Cleanup(c.Close)
	return c
}

// holds skips a test for which the token of a real server lacks a privilege. The simulator's token gets it.
func (s *server) holds(path string, wanted ...string) {
	s.t.Helper()
	for _, privilege := range wanted {
		if slices.Contains(s.privileges(path), privilege) {
			continue
		}
		if s.sim == nil {
			s.skipf("needs %s on %s", privilege, path)
		}
		s.sim.world.AddRole("Also"+privilege, append(role(), privilege)...)
		s.sim.world.Grant(world.ACL{Path: path, Who: simToken, Role: "Also" + privilege, Propagate: true})
	}
}

// lacks skips a test for which the token of a real server must not have a privilege. The simulator's token loses it.
func (s *server) lacks(path, privilege string) {
	s.t.Helper()
	if s.sim != nil {
		less := slices.DeleteFunc(role(), func(p string) bool { return p == privilege })
		s.sim.world.AddRole("Without"+privilege, less...)
		s.sim.world.Revoke(world.ACL{Path: "/", Who: simToken, Role: "Contract", Propagate: true})
		s.sim.world.Grant(world.ACL{Path: "/", Who: simToken, Role: "Without" + privilege, Propagate: true})
	}
	if slices.Contains(s.privileges(path), privilege) {
		s.skipf("needs a token without %s on %s", privilege, path)
	}
}

// without makes a token of the simulator's with the suite's privileges except one.
func (s *server) without(privilege string) (token string) {
	s.t.Helper()
	return s.only("/", slices.DeleteFunc(role(), func(p string) bool { return p == privilege })...)
}

// only makes a token of the simulator's with privileges at one path and below, and no others.
func (s *server) only(path string, privileges ...string) (token string) {
	s.t.Helper()
	token = "contract@pve!t" + strings.ReplaceAll(strings.Join(privileges, "-"), ".", "") + "=" + secret
	id, _, _ := strings.Cut(token, "=")
	s.sim.world.AddToken(world.Token{ID: id, Secret: secret, Privsep: true})
	s.also(token, path, privileges...)
	return token
}

// also grants a token of the simulator's privileges at another path.
func (s *server) also(token, path string, privileges ...string) {
	id, _, _ := strings.Cut(token, "=")
	name := id + path
	s.sim.world.AddRole(name, privileges...)
	s.sim.world.Grant(world.ACL{Path: path, Who: id, Role: name, Propagate: true})
}

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

// swept is the result of the check before the first test: nothing is made in a range with foreign VMs.
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

// sweep removes the VMs and ISOs of a killed run, unless the range contains a foreign guest. The origin of volumes
// without a VM is unknown: they are left alone, and their VMIDs are not used.
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
