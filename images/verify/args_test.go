package verify

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

// What imager writes for Talos 1.13 on nocloud, before META and the schematic's arguments.
const (
	installerArgs = "talos.platform=nocloud console=tty1 console=ttyS0 net.ifnames=0 slab_nomerge pti=on consoleblank=0 " +
		"printk.devkmsg=on selinux=1 module.sig_enforce=1 proc_mem.force_override=never"
	isoArgs = "talos.platform=nocloud console=tty1 console=ttyS0 net.ifnames=0 talos.halt_if_installed=1 slab_nomerge pti=on consoleblank=0 " +
		"printk.devkmsg=on selinux=1 module.sig_enforce=1 proc_mem.force_override=never"
	lockArgs = "recast.lock=sha256-1234"
)

func metaArgs(text string) string {
	return metaArg + "=" + metaPrefix + base64.StdEncoding.EncodeToString([]byte(text))
}

type argsCase struct {
	line  string
	extra string // beside recast's own
	meta  []schematics.MetaValue
	want  wantedArgs
	bad   []string // parts of what is found, one each
}

func argsCases() map[string]argsCase {
	return map[string]argsCase{
		"an installer": {line: installerArgs + " " + lockArgs},
		"an ISO":       {line: isoArgs + " " + lockArgs, want: wantedArgs{iso: true}},
		"arguments of the schematic": {
			line: installerArgs + " a=1 a=2 b " + lockArgs, extra: "a=1 b a=2",
		},
		"another value of Talos' own": {
			line: strings.Replace(installerArgs, "pti=on", "pti=on pti=off", 1) + " " + lockArgs, extra: "pti=off",
		},
		"another console": {
			line: strings.Replace(installerArgs, "console=tty1 console=ttyS0", "console=ttyS1,115200", 1) + " " + lockArgs, extra: "console=ttyS1,115200",
		},
		"one removed": {
			line: strings.Replace(installerArgs, " consoleblank=0", "", 1) + " " + lockArgs, extra: "-consoleblank",
		},
		"one value removed": {
			line: strings.Replace(installerArgs, "console=tty1 ", "", 1) + " x " + lockArgs, extra: "-console=tty1 x",
		},
		// The following are the results of procfs.Cmdline.AppendAll of
		// siderolabs/go-procfs v0.1.2, with the options that imager uses
		// (buildCmdline in pkg/imager).
		"one value for another": {
			line: strings.Replace(installerArgs, "consoleblank=0", "consoleblank=60", 1) + " " + lockArgs, extra: "-consoleblank=0 consoleblank=60",
		},
		"one value for another, in any order": {
			line: strings.Replace(installerArgs, "pti=on", "pti=auto", 1) + " x " + lockArgs, extra: "pti=auto x -pti=on",
		},
		"a key for another": {
			line: strings.Replace(installerArgs, " consoleblank=0", "", 1) + " consoleblank=60 " + lockArgs, extra: "-consoleblank consoleblank=60",
		},
		"a missing value removed": {line: installerArgs + " " + lockArgs, extra: "-pti=off"},
		"a lone hyphen":           {line: installerArgs + " - " + lockArgs, extra: "-"},
		"a value, and none":       {line: strings.Replace(installerArgs, "console=tty1 ", "", 1) + " " + lockArgs, extra: "-console=tty1 -console"},
		"META of an ISO": {
			line: isoArgs + " " + metaArgs("0xa=x: y;0xc=z") + " " + lockArgs, want: wantedArgs{iso: true},
			meta: []schematics.MetaValue{{Key: 10, Value: "x: y"}, {Key: 12, Value: "z"}},
		},
		"no META of an installer": {line: installerArgs + " " + lockArgs, meta: []schematics.MetaValue{{Key: 10, Value: "x"}}},
		"an unknown one that the schematic names": {
			line: strings.Replace(installerArgs, "pti=on", "pti=on new=1", 1) + " new=1 " + lockArgs, extra: "new=1",
			bad: []string{"they are in another order"}, // imager keeps the values of a key together
		},
		"an unknown one that the schematic names, where it is": {
			line: installerArgs + " new=1 new=1 " + lockArgs, extra: "new=1",
		},
		"an overlay's": {line: installerArgs + " board=x " + lockArgs, want: wantedArgs{overlay: true}},

		"no lock":     {line: installerArgs, bad: []string{"the schematic's recast.lock=sha256-1234 is missing"}},
		"other lock":  {line: installerArgs + " recast.lock=sha256-5678", bad: []string{"recast.lock=sha256-5678 is neither Talos' nor", "the schematic's recast.lock=sha256-1234 is missing"}},
		"two locks":   {line: installerArgs + " recast.lock=sha256-5678 " + lockArgs, bad: []string{"recast.lock=sha256-5678 is neither Talos' nor"}},
		"too early":   {line: lockArgs + " " + installerArgs, bad: []string{"they are in another order, recast.lock talos.platform console "}},
		"other order": {line: installerArgs + " b a " + lockArgs, extra: "a b", bad: []string{"b a recast.lock; should be talos.platform"}},
		"one added":   {line: installerArgs + " talos.config=http://10.0.0.1/ " + lockArgs, bad: []string{"talos.config=http://10.0.0.1/… is neither"}},
		"one added in an overlay's build": {
			line: installerArgs + " talos.config=http://10.0.0.1/ " + lockArgs, want: wantedArgs{overlay: true}, bad: []string{"talos.config=http://10.0.0.1/… is neither"},
		},
		"a secret": {
			line: installerArgs + " talos.config=https://me:secret@h.example/secret?t=secret " + lockArgs,
			bad:  []string{"talos.config=https://h.example/… is neither Talos' nor the schematic's"},
		},
		"not removed": {line: installerArgs + " " + lockArgs, extra: "-consoleblank", bad: []string{"consoleblank is there, but the schematic removes it"}},
		"not replaced": {
			line: installerArgs + " consoleblank=60 " + lockArgs, extra: "-consoleblank=0 consoleblank=60", bad: []string{"consoleblank"},
		},
		"another platform": {
			line: strings.Replace(installerArgs, "=nocloud", "=metal", 1) + " " + lockArgs, bad: []string{"talos.platform=metal is neither"},
		},
		"no platform":             {line: "console=tty0 " + lockArgs, bad: []string{"talos.platform=nocloud is missing"}},
		"an installer that halts": {line: isoArgs + " " + lockArgs, bad: []string{"talos.halt_if_installed=1 is neither"}},
		"an ISO that does not":    {line: installerArgs + " " + lockArgs, want: wantedArgs{iso: true}, bad: []string{"talos.halt_if_installed=1 is missing"}},
		"other META": {
			line: isoArgs + " " + metaArgs("0xa=other") + " " + lockArgs, want: wantedArgs{iso: true}, meta: []schematics.MetaValue{{Key: 10, Value: "x"}},
			bad: []string{"talos.environment=", "META values are missing"},
		},
		"META of no schematic": {line: isoArgs + " " + metaArgs("0xa=x") + " " + lockArgs, want: wantedArgs{iso: true}, bad: []string{"talos.environment="}},
	}
}

func TestKernelArgs(t *testing.T) {
	t.Parallel()
	must.Each(t, argsCases(), func(t *testing.T, tc argsCase) {
		w := tc.want
		w.platform, w.meta = "nocloud", tc.meta
		w.extra = append(strings.Fields(tc.extra), lockArgs)
		got := w.check(tc.line)
		if len(got) != len(tc.bad) {
			t.Fatalf("found %q, want %d", got, len(tc.bad))
		}
		for i, want := range tc.bad {
			if !strings.Contains(got[i], want) {
				t.Errorf("found %q, want it to hold %q", got[i], want)
			}
		}
	})
}

// TestLongMeta: imager compresses long values.
func TestLongMeta(t *testing.T) {
	t.Parallel()
	// echo -n "0xa=aaaa" | gzip -9n, as pkg/machinery/meta does above 256 bytes.
	const packed = "H4sIAAAAAAACAzOoSLRNBAIAyYitKQgAAAA="
	if !sameMeta(metaPrefix+packed, []schematics.MetaValue{{Key: 10, Value: "aaaa"}}) {
		t.Error("not recognised")
	}
	if sameMeta(metaPrefix+packed, []schematics.MetaValue{{Key: 10, Value: "aaa"}}) {
		t.Error("another value is accepted")
	}
}

// TestArgsRoundTrip: a parsed and reassembled command line is the same.
func TestArgsRoundTrip(t *testing.T) {
	t.Parallel()
	must.Equal(t, "result", installerArgs+" "+lockArgs, parseArgs(installerArgs+"  "+lockArgs+"\n").String())
}
