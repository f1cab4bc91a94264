package pve

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/pve/api/apitest"
)

// testUPID names a task on pve1.
const testUPID = "UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve!roll:"

type (
	route = apitest.Route
	fake  = apitest.Fake
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
	c, err := New(o)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// onNode runs a test in a bubble with a fake of one node and a client of it.
func onNode(t *testing.T, test func(t *testing.T, pve1 *fake, c *Client)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		test(t, pve1, s.client(t, "pve1"))
	})
}

func runOnNode(t *testing.T, name string, test func(t *testing.T, pve1 *fake, c *Client)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { onNode(t, test) })
}

func runInBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

// same requires two values to be equal.
func same(t *testing.T, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
