package contract

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
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

// role is the role of the suite's token: what recast needs to roll by recreate, as in
// docs/notes/permissions.md, and nothing else. Tests request further privileges with
// holds.
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
		listener, err := sim.network.Listen(fmt.Sprintf("127.42.9.%d:8006", i+1))
		must(t, err)
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

// connect makes a recast client.
func (s *server) connect(o api.Options) *pve.Client {
	s.t.Helper()
	c, err := pve.New(o)
	must(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}
