package pve

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// testUPID names a task on pve1.
const testUPID = "UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve!roll:"

type (
	route = apitest.Route
	fake  = apitest.Fake

	routes = map[string][]route // answers in turn, by request
)

var (
	data, raw, after, changes = apitest.Data, apitest.Raw, apitest.After, apitest.Changes

	lost route = apitest.Lost
)

// site is a network with fakes of Proxmox nodes.
type site struct{ *apitest.Site }

func newSite(t *testing.T) site { return site{apitest.NewSite(t)} }

// client returns a client of the given hosts that trusts the site's certificate.
func (s site) client(t *testing.T, hosts ...string) *Client {
	t.Helper()
	return s.clientWith(t, api.Options{RootCAs: s.Pool(), Poll: time.Second}, hosts...)
}

func (s site) clientWith(t *testing.T, o api.Options, hosts ...string) *Client {
	t.Helper()
	for _, h := range hosts {
		o.Endpoints = append(o.Endpoints, "https://"+h+":8006")
	}
	if o.Token == nil {
		o.Token = []byte(apitest.Token)
	}
	if o.Dial == nil {
		o.Dial = s.Net.Dialer().DialContext
	}
	c := must.Get(New(o))(t)
	t.Cleanup(c.Close)
	return c
}

// inBubble runs a test in a bubble, beside the others.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// inEachBubble runs each row of a table in a bubble of its own, all at the same time.
func inEachBubble[T any](t *testing.T, rows map[string]T, test func(t *testing.T, row T)) {
	t.Helper()
	must.Each(t, rows, func(t *testing.T, row T) { synctest.Test(t, func(t *testing.T) { test(t, row) }) })
}

// onNode runs a test in a bubble with a fake of one node and a client of it.
func onNode(t *testing.T, test func(t *testing.T, pve1 *fake, c *Client)) {
	t.Helper()
	inBubble(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		test(t, pve1, s.client(t, "pve1"))
	})
}

func onEachNode[T any](t *testing.T, rows map[string]T, test func(t *testing.T, pve1 *fake, c *Client, row T)) {
	t.Helper()
	inEachBubble(t, rows, func(t *testing.T, row T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		test(t, pve1, s.client(t, "pve1"), row)
	})
}

// inLab runs a test in a lab of its own, beside the others.
func inLab(t *testing.T, test func(t *testing.T, l lab)) {
	t.Helper()
	inBubble(t, func(t *testing.T) { test(t, newLab(t)) })
}

func inEachLab[T any](t *testing.T, rows map[string]T, test func(t *testing.T, l lab, row T)) {
	t.Helper()
	inEachBubble(t, rows, func(t *testing.T, row T) { test(t, newLab(t), row) })
}

// wantError requires an error that wraps is and has part in its text, or none if neither is given.
func wantError(t *testing.T, err, is error, part string) {
	t.Helper()
	if is == nil && part == "" {
		must.Do(t, err)
	} else if err == nil || !strings.Contains(err.Error(), part) || is != nil && !errors.Is(err, is) {
		t.Errorf("error is %v, want %v with %q in it", err, is, part)
	}
}

// within requires no more time to have passed since then.
func within(t *testing.T, began time.Time, limit time.Duration) {
	t.Helper()
	if took := time.Since(began); took > limit {
		t.Errorf("took %s, more than %s", took, limit)
	}
}

// obedient is a guest that powers off on request, after a while.
type obedient struct{ hw *world.Hardware }

func (g obedient) PowerOn(hw *world.Hardware) world.Guest { return obedient{hw} }
func (g obedient) Shutdown()                              { time.AfterFunc(5*time.Second, g.hw.PowerOff) }
func (g obedient) Kill()                                  {}

// lab is a simulated Proxmox host, and our client with the privileges of an ordinary token.
type lab struct {
	*Client
	site     site
	world    *world.World
	recorder *record.Recorder
}

func newLab(t *testing.T) lab {
	t.Helper()
	w := world.New(world.Options{Cluster: "lab"})
	t.Cleanup(w.Close)
	w.SetFirmware(obedient{})
	for _, host := range []string{"pve1", "pve2"} {
		w.AddHost(host)
	}
	w.AddStorage(world.Storage{ID: "isos", Type: "cephfs", Shared: true, Content: []string{"iso"}, Capacity: 1 << 30})
	w.AddStorage(world.Storage{ID: "fast", Type: "dir", Content: []string{"images"}, Capacity: 100 << 30})
	w.AddRole("Recast", strings.Fields("VM.Allocate VM.Audit VM.PowerMgmt VM.Config.Disk VM.Config.CDROM VM.Config.CPU VM.Config.Memory VM.Config.Network "+
		"VM.Config.HWType VM.Config.Options Datastore.AllocateSpace Datastore.Audit Datastore.AllocateTemplate SDN.Use Sys.Audit Sys.Console")...)
	w.AddPool("lab")
	w.AddToken(world.Token{ID: "recast@pve!roll", Secret: apitest.Secret, Privsep: true})
	for _, who := range []string{"recast@pve", "recast@pve!roll"} {
		w.Grant(world.ACL{Path: "/", Who: who, Role: "Recast", Propagate: true})
	}
	err := w.DefineVM("pve1", 9011, map[string]string{
		"name": "wk1", "smbios1": "uuid=00000000-0000-0000-0000-000000009011", "memory": "2048", "agent": "1", "scsihw": "virtio-scsi-single",
		"net0": "virtio=BC:24:11:00:90:11,bridge=vmbr0", "scsi0": "fast:10", "scsi1": "fast:2,serial=data-wk1,discard=on", "ide2": "none,media=cdrom", "boot": "order=scsi0;ide2",
	}, map[string]*world.Media{"scsi1": world.NewMedia([]byte("precious"))})
	must.Do(t, err)
	s, rec := newSite(t), record.New()
	apidoctest.Check(t, rec)
	server := pveapi.New(w, rec, "pve1")
	l := must.Get(s.Net.Listen("pve1:8006"))(t)
	server.Serve(l, s.Cert)
	t.Cleanup(func() { _ = server.Close() })
	return lab{world: w, Client: s.client(t, "pve1"), recorder: rec, site: s}
}

// read reads a VM that must be there.
func (l lab) read(t *testing.T, id cluster.VMID) cluster.VM {
	t.Helper()
	vm := must.Get(l.VM(t.Context(), id))(t)
	return vm
}

// TestVolumesOfEachHost: on a local storage, the same volid names a different volume on each host, or none.
func TestVolumesOfEachHost(t *testing.T) {
	inLab(t, func(t *testing.T, l lab) {
		ctx := t.Context()
		l.world.AddStorage(world.Storage{ID: "pool", Type: "dir", Shared: true, Content: []string{"images"}})
		must.Do(t, l.world.DefineVM("pve2", 9021, map[string]string{"scsi0": "fast:1", "scsi1": "pool:1"}, nil))
		for _, c := range []struct {
			host, volid string
			want        bool
		}{
			{"pve1", "fast:9011/vm-9011-disk-0.raw", true},
			{"pve2", "fast:9011/vm-9011-disk-0.raw", false},
			{"pve1", "fast:9021/vm-9021-disk-0.raw", false},
			{"pve2", "fast:9021/vm-9021-disk-0.raw", true},
			{"pve1", "pool:9021/vm-9021-disk-0.raw", true},
			{"pve2", "pool:9021/vm-9021-disk-0.raw", true},
		} {
			storage, _, _ := strings.Cut(c.volid, ":")
			var owner cluster.VMID = 9021
			if strings.Contains(c.volid, "9011") {
				owner = 9011
			}
			has := must.Get(l.HasVolume(ctx, c.host, c.volid))(t)
			owned := must.Get(l.OwnedVolumes(ctx, c.host, storage, owner))(t)
			if has != c.want || slices.Contains(owned, c.volid) != c.want {
				t.Errorf("%s on %s: has %t, owned %q; want %t", c.volid, c.host, has, owned, c.want)
			}
		}
	})
}
