package factoryapi_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestKernelArguments: where a schematic's arguments go in the imager's command line (siderolabs/go-procfs).
func TestKernelArguments(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want []string // parts of the line
		not  string
	}{
		"at the end":            {[]string{"a=1", "b"}, []string{"=never a=1 b"}, ""},
		"beside the others":     {[]string{"net.ifnames=1", "a=1", "pti=off", "a=2"}, []string{"net.ifnames=0 net.ifnames=1 ", " pti=on pti=off ", "=never a=1 a=2"}, ""},
		"instead of others":     {[]string{"console=ttyS1"}, []string{"talos.platform=nocloud console=ttyS1 net.ifnames"}, "console=tty1"},
		"a key taken away":      {[]string{"-console", "a=1"}, []string{"talos.platform=nocloud net.ifnames", "=never a=1"}, "console=tty"},
		"a value taken away":    {[]string{"-pti=on", "-selinux=0", "-none"}, []string{"slab_nomerge consoleblank=0", " selinux=1 "}, "pti"},
		"a dash, and two words": {[]string{"-", "a=1 b=2"}, []string{"=never - a=1 b=2"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				_, line := l.do(http.MethodGet, "/image/"+l.register(nil, tc.args...)+"/"+talosVersion+"/cmdline-nocloud-amd64", "")
				for _, want := range tc.want {
					if !strings.Contains(line, want) {
						t.Errorf("%q is missing in %q", want, line)
					}
				}
				if tc.not != "" && strings.Contains(line, tc.not) {
					t.Errorf("%q is in %q", tc.not, line)
				}
			})
		})
	}
}
