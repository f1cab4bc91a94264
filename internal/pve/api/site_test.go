package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/pve/api/apitest"
)

const testUPID = "UPID:pve1:0000ABCD:00012345:386D4380:qmdestroy:101:recast@pve!roll:"

type (
	route = apitest.Route
	fake  = apitest.Fake
)

var (
	data, raw, after = apitest.Data, apitest.Raw, apitest.After

	lost route = apitest.Lost
)

// connTo returns a connection to the given hosts that trusts the site's certificate.
func connTo(t *testing.T, s *apitest.Site, hosts ...string) *Conn {
	t.Helper()
	return connWith(t, s, Options{RootCAs: s.Pool()}, hosts...)
}

func connWith(t *testing.T, s *apitest.Site, o Options, hosts ...string) *Conn {
	t.Helper()
	for _, h := range hosts {
		o.Endpoints = append(o.Endpoints, "https://"+h+":8006")
	}
	o.Token = []byte(apitest.Token)
	if o.Dial == nil {
		o.Dial = s.Net.Dialer().DialContext
	}
	c, err := Connect(o)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same requires two values to be equal.
func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
