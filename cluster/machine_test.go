package cluster

import (
	"net/netip"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestPendingReboot: an entry whose name has another version than the running one is of the previous boot.
func TestPendingReboot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		runs, booted, next string
		want               bool
	}{
		"the same":                     {"v1.14.1", "talos-v1.14.1.efi", "talos-v1.14.1.efi", false},
		"unknown":                      {"v1.14.1", "", "talos-v1.14.1.efi", false},
		"another one of the version":   {"v1.14.1", "talos-v1.14.1.efi", "talos-v1.14.1~1.efi", true},
		"a newer one":                  {"v1.13.9", "talos-v1.13.9.efi", "talos-v1.14.1.efi", true},
		"the newer one runs":           {"v1.14.1", "talos-v1.13.9.efi", "talos-v1.14.1.efi", false},
		"the newer one runs, numbered": {"v1.14.1", "talos-v1.13.9~3.efi", "talos-v1.14.1~1.efi", false},
	} {
		must.Equal(t, name, c.want, (RunningSystem{TalosVersion: c.runs, BootEntry: c.booted, NextBoot: c.next}).PendingReboot())
	}
}

// TestCorrected: the entry that an earlier disk has left is none that is installed, until an installer
// has run; after a kexec Talos says that it booted that one.
func TestCorrected(t *testing.T) {
	const gone, runs, next = "talos-v1.13.9~1.efi", "talos-v1.13.9.efi", "talos-v1.14.1.efi"
	for _, c := range []struct {
		booted, next string
		mark         *Mark
		want         [2]string
	}{
		{booted: runs, next: gone, want: [2]string{runs, ""}},
		{booted: gone, next: gone, want: [2]string{"", ""}},
		{booted: runs, next: next, want: [2]string{runs, next}},
		{booted: runs, next: gone, mark: &Mark{}, want: [2]string{runs, ""}},
		{booted: runs, next: gone, mark: &Mark{Installed: true}, want: [2]string{runs, gone}},
	} {
		k := KubeNode{Booted: Booted{Gone: gone}, Mark: c.mark}
		if m := k.Corrected(RunningSystem{BootEntry: c.booted, NextBoot: c.next}, ""); m.BootEntry != c.want[0] || m.NextBoot != c.want[1] {
			t.Errorf("%+v: booted %q, next %q", c, m.BootEntry, m.NextBoot)
		}
	}
}

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
