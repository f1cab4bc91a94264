package cluster

import "testing"

// TestOptionsAsProxmoxReadsThem: two spellings that mean the same drive to
// Proxmox are the same, and nothing else is.
func TestOptionsAsProxmoxReadsThem(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		a, b string
		same bool
	}{
		"as written":             {"iothread=1,serial=a", "iothread=1,serial=a", true},
		"in another order":       {"serial=a,iothread=1", "iothread=1,serial=a", true},
		"the size is not its":    {"size=10G,serial=a", "serial=a,size=20480M", true},
		"on and 1":               {"iothread=on,ssd=TRUE,backup=no", "backup=0,iothread=1,ssd=1", true},
		"on and 0":               {"iothread=on", "iothread=0", false},
		"on and nothing":         {"iothread=on", "", false},
		"no boolean":             {"discard=on", "discard=1", false},
		"not to be read as one":  {"iothread=maybe", "iothread=1", false},
		"pre-enrolled keys":      {"efitype=4m,pre-enrolled-keys=yes", "efitype=4m,pre-enrolled-keys=1", true},
		"a serial that says on":  {"serial=on", "serial=1", false},
		"another name":           {"iops_rd_length=2", "iops_rd_max_length=2", true},
		"bytes":                  {"bps_rd=1048576", "mbps_rd=0.000", true},
		"geometry":               {"cyls=1,heads=1,secs=1,trans=lba,serial=a", "serial=a", true},
		"empty parts":            {"serial=a,,", "serial=a", true},
		"one more":               {"serial=a", "serial=a,ssd=1", false},
		"another value":          {"serial=a", "serial=b", false},
		"without a name":         {"serial=a,x", "serial=a", false},
		"twice, Proxmox refuses": {"serial=a,serial=b", "serial=b", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := SplitOptions(tc.a), SplitOptions(tc.b)
			if SameOptions(a, b) != tc.same || SameOptions(b, a) != tc.same {
				t.Errorf("%q and %q: the same is %v", tc.a, tc.b, !tc.same)
			}
		})
	}
}
