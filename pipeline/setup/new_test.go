package setup

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
)

func TestAddressesOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.0.0.11/24":                         "[10.0.0.11/24]",
		"10.0.0.11-10.0.0.13/24":               "[10.0.0.11/24 10.0.0.12/24 10.0.0.13/24]",
		"10.0.0.254-10.0.1.1/16":               "[10.0.0.254/16 10.0.0.255/16 10.0.1.0/16 10.0.1.1/16]",
		"10.0.0.11/24, 10.0.1.21-10.0.1.22/24": "[10.0.0.11/24 10.0.1.21/24 10.0.1.22/24]",
		"10.0.0.0-10.0.0.1/31":                 "[10.0.0.0/31 10.0.0.1/31]",
		"10.0.0.11":                            "is no IPv4 address with its prefix length",
		"10.0.0.11-18/24":                      "is no IPv4 address with its prefix length",
		"10.0.0.11/33":                         "is no IPv4 address with its prefix length",
		"fd00::11/64":                          "is no IPv4 address with its prefix length",
		"":                                     "is no IPv4 address with its prefix length",
		"10.0.0.11-10.0.1.11/24":               "are not in one network",
		"10.0.0.18-10.0.0.11/24":               "runs backwards",
		"10.0.0.0-10.0.0.3/24":                 "has the first or the last address of its network",
		"10.0.0.250-10.0.0.255/24":             "has the first or the last address of its network",
		"10.0.0.11-10.0.0.13/24,10.0.0.12/24":  "10.0.0.12 is there twice",
	} {
		got, err := addressesOf(strings.Split(text, ","))
		if err == nil && fmt.Sprint(got) != want || err != nil && (!strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Config) {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	if got, err := addressesOf([]string{"10.0.0.1-10.255.255.254/8"}); err != nil || len(got) != 1000 {
		t.Errorf("of a large range: %d, %v", len(got), err)
	}
}

// TestReached: the Kubernetes API does not depend on one of several control planes.
func TestReached(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		controlPlanes         int
		vip, endpoint, answer string
		wantVIP, want, err    string
	}{
		"the only one":                {controlPlanes: 1, want: "https://10.0.0.11:6443"},
		"the only one, and a VIP":     {controlPlanes: 1, vip: "10.0.0.10", wantVIP: "10.0.0.10", want: "https://10.0.0.10:6443"},
		"a VIP":                       {controlPlanes: 3, vip: "10.0.0.10", wantVIP: "10.0.0.10", want: "https://10.0.0.10:6443"},
		"a VIP with a name":           {controlPlanes: 3, vip: "10.0.0.10", endpoint: "https://k8s.example:6443", wantVIP: "10.0.0.10", want: "https://k8s.example:6443"},
		"a load balancer":             {controlPlanes: 3, endpoint: "https://k8s.example:6443", want: "https://k8s.example:6443"},
		"the answer is an address":    {controlPlanes: 3, answer: "10.0.0.10", wantVIP: "10.0.0.10", want: "https://10.0.0.10:6443"},
		"the answer is a URL":         {controlPlanes: 3, answer: "https://k8s.example", want: "https://k8s.example"},
		"an address elsewhere":        {controlPlanes: 3, vip: "10.0.1.10", err: `"10.0.1.10" is no address of 10.0.0.0/24`},
		"the address of a node":       {controlPlanes: 3, vip: "10.0.0.12", err: "10.0.0.12 is that of the gateway or of a node"},
		"the gateway":                 {controlPlanes: 3, vip: "10.0.0.1", err: "10.0.0.1 is that of the gateway or of a node"},
		"the address of a VM":         {controlPlanes: 3, vip: "10.0.0.50", err: "10.0.0.50 is the address of VM 300"},
		"no address":                  {controlPlanes: 3, answer: "vip", err: `"vip" is no address`},
		"a URL without encryption":    {controlPlanes: 3, endpoint: "http://10.0.0.10:6443", err: "no URL of the Kubernetes API"},
		"a URL that holds a password": {controlPlanes: 3, endpoint: "https://me:hush@10.0.0.10:6443", err: "no URL of the Kubernetes API"},
	} {
		in := newCluster{initial: &initial{}, NewOptions: NewOptions{VIP: tc.vip, Endpoint: tc.endpoint}, gateway: netip.MustParseAddr("10.0.0.1")}
		in.found.VMs = []cluster.VM{{ID: 300, Name: "web", Config: map[string]string{"ipconfig1": "gw=10.0.0.1,ip=10.0.0.50/24"}}}
		in.prefixes, _ = addressesOf([]string{"10.0.0.11-10.0.0.13/24"})
		for range tc.controlPlanes {
			in.found.Nodes = append(in.found.Nodes, survey.Discovered{Machine: cluster.Machine{ControlPlane: true}})
		}
		in.src.Ask = func(context.Context, Question) (string, error) { return tc.answer, nil }
		err := in.reached(t.Context())
		if tc.err != "" {
			if !strings.Contains(fmt.Sprint(err), tc.err) || strings.Contains(fmt.Sprint(err), "hush") {
				t.Errorf("%s: %v; want %q", name, err, tc.err)
			}
			continue
		}
		if err != nil || in.VIP != tc.wantVIP || in.Endpoint != tc.want {
			t.Errorf("%s: %q, %q, %v; want %q, %q", name, in.VIP, in.Endpoint, err, tc.wantVIP, tc.want)
		}
	}
}
