package cluster

import (
	"net/netip"
	"testing"
)

func TestWhereAnEtcdMemberIsReached(t *testing.T) {
	t.Parallel()
	known := []Endpoint{{"cp1", netip.MustParseAddr("10.0.0.1")}}
	for name, tc := range map[string]struct {
		member EtcdMember
		want   string // "": nowhere
	}{
		"etcd has a network of its own":     {EtcdMember{Name: "cp1", Peers: []string{"https://192.168.9.1:2380"}}, "10.0.0.1"},
		"no node of that name":              {EtcdMember{Name: "cp9", Peers: []string{"https://192.168.9.9:2380"}}, "192.168.9.9"},
		"IPv6, the second of its peer URLs": {EtcdMember{Name: "cp9", Peers: []string{"https://cp9:2380", "https://[fd00::9]:2380"}}, "fd00::9"},
		"only a name":                       {EtcdMember{Name: "cp9", Peers: []string{"https://cp9:2380"}}, ""},
	} {
		got, err := tc.member.Address(known)
		if (err == nil) != (tc.want != "") || err == nil && got.String() != tc.want {
			t.Errorf("%s: %s, %v, want %q", name, got, err, tc.want)
		}
	}
}
