package verify

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/schematics"
)

const (
	platformArg = "talos.platform"
	consoleArg  = "console"
	haltArg     = "talos.halt_if_installed"
	metaArg     = "talos.environment"
	metaPrefix  = "INSTALLER_META_BASE64="
)

// ownArgs returns the arguments that Talos 1.10 and later add themselves: see DefaultArgs and SecureBootArgs in
// pkg/machinery/kernel and the KernelArgs of the platforms metal and nocloud in siderolabs/talos.
func ownArgs() map[string][]string {
	return map[string][]string{
		consoleArg:                {"tty0", "tty1", "ttyS0", "ttyAMA0"},
		"net.ifnames":             {"0"},
		"init_on_alloc":           {"1"},
		"slab_nomerge":            {""},
		"pti":                     {"on"},
		"consoleblank":            {"0"},
		"nvme_core.io_timeout":    {"4294967295"},
		"printk.devkmsg":          {"on"},
		"ima_template":            {"ima-ng"},
		"ima_appraise":            {"fix"},
		"ima_hash":                {"sha512"},
		"selinux":                 {"1"},
		"module.sig_enforce":      {"1"},
		"proc_mem.force_override": {"never"},
		"lockdown":                {"confidentiality"},
	}
}

// wantedArgs is what the lock says about a kernel command line.
type wantedArgs struct {
	platform string
	extra    []string // the schematic's, recast's own last
	meta     []schematics.MetaValue
	iso      bool
	overlay  bool // the overlay adds arguments that only its program knows
}

// check lists how a command line differs from imager's, which has Talos' own arguments and then the schematic's. See
// buildCmdline in pkg/imager of siderolabs/talos.
func (w wantedArgs) check(line string) []string {
	extra := parseArgs(strings.Join(w.extra, " "))
	got := parseArgs(line)
	own := got.less(extra)
	found := w.checkOwn(own, extra)
	want := own.plus(extra)
	for _, a := range want {
		if !slices.Equal(got.values(a.key), a.values) {
			found = append(found, fmt.Sprintf("the schematic's %s is missing", shown(a.key, extra.values(a.key))))
		}
	}
	for _, a := range got {
		if want.find(a.key) == nil {
			found = append(found, fmt.Sprintf("%s is there, but the schematic removes it", a.key))
		}
	}
	if len(found) == 0 && want.String() != strings.Join(strings.Fields(line), " ") {
		found = append(found, fmt.Sprintf("they are in another order, %s; should be %s", argKeys(parseArgs(line)), argKeys(want)))
	}
	return found
}

// checkOwn checks a command line without the schematic's arguments. It accepts an unknown argument that the schematic
// names, too.
func (w wantedArgs) checkOwn(own, extra cmdline) []string {
	var found []string
	known := ownArgs()
	known[platformArg] = []string{w.platform}
	if w.iso {
		known[haltArg] = []string{"1"}
	}
	var meta bool
	for _, a := range own {
		for _, value := range a.values {
			switch {
			case a.replaced: // by the schematic's values, which are compared
			case a.key == metaArg && w.iso && !meta && len(w.meta) > 0 && sameMeta(value, w.meta):
				meta = true
			case slices.Contains(extra.values(a.key), value):
			case w.overlay && !strings.HasPrefix(a.key, "talos.") && known[a.key] == nil:
			case !slices.Contains(known[a.key], value):
				found = append(found, fmt.Sprintf("%s is neither Talos' nor the schematic's", shown(a.key, []string{value})))
			}
		}
	}
	if own.find(platformArg) == nil {
		found = append(found, fmt.Sprintf("%s=%s is missing", platformArg, w.platform))
	}
	if w.iso && own.find(haltArg) == nil && extra.find("-"+haltArg) == nil {
		found = append(found, haltArg+"=1 is missing")
	}
	if w.iso && len(w.meta) > 0 && !meta {
		found = append(found, "the schematic's META values are missing from "+metaArg)
	}
	return found
}

// sameMeta decodes META values as Talos does: see Encode in pkg/machinery/meta of siderolabs/talos.
func sameMeta(value string, want []schematics.MetaValue) bool {
	text, ok := strings.CutPrefix(value, metaPrefix)
	if !ok {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return false
	}
	var list []string
	for _, m := range want {
		list = append(list, fmt.Sprintf("0x%x=%s", m.Key, m.Value))
	}
	wanted := strings.Join(list, ";")
	if !bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		return string(raw) == wanted
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return false
	}
	plain, err := io.ReadAll(io.LimitReader(z, int64(len(wanted))+1))
	return err == nil && string(plain) == wanted
}

// cmdline is a kernel command line as Talos handles it (siderolabs/go-procfs): the
// values of a key are kept together, at the key's first position.
type cmdline []argument

type argument struct {
	key      string
	values   []string // "" for a key without a value
	replaced bool     // the schematic's values replace Talos' own
}

func parseArgs(line string) cmdline {
	var c cmdline
	for field := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(field, "=")
		c = c.add(key, value)
	}
	return c
}

func (c cmdline) find(key string) *argument {
	for i := range c {
		if c[i].key == key {
			return &c[i]
		}
	}
	return nil
}

func (c cmdline) values(key string) []string {
	if a := c.find(key); a != nil {
		return a.values
	}
	return nil
}

func (c cmdline) add(key string, values ...string) cmdline {
	if a := c.find(key); a != nil {
		a.values = append(slices.Clone(a.values), values...)
		return c
	}
	return append(c, argument{key: key, values: values})
}

// replaces reports whether the schematic's values of a key replace Talos' own.
func replaces(key string) bool { return key == consoleArg || key == platformArg }

// less returns the command line before the schematic's arguments were added.
func (c cmdline) less(extra cmdline) cmdline {
	var own cmdline
	for _, a := range c {
		e := extra.find(a.key)
		switch {
		case e == nil:
		case replaces(a.key):
			a.replaced = true
		case len(a.values) >= len(e.values) && slices.Equal(a.values[len(a.values)-len(e.values):], e.values):
			a.values = a.values[:len(a.values)-len(e.values)]
		}
		// If the schematic removes Talos' own values, their key stays in place for the values that the schematic
		// adds.
		emptied := ownArgs()[a.key] != nil && extra.find("-"+a.key) != nil
		if len(a.values) > 0 || emptied {
			own = append(own, a)
		}
	}
	return own
}

// plus returns the command line with the schematic's arguments, as imager adds them.
func (c cmdline) plus(extra cmdline) cmdline {
	c = slices.Clone(c)
	for _, e := range extra {
		switch key, negated := strings.CutPrefix(e.key, "-"); {
		case negated && key != "": // a lone "-" is an ordinary argument
			c = c.without(key, e.values)
		case replaces(e.key) && c.find(e.key) != nil:
			c.find(e.key).values = e.values
		default:
			c = c.add(e.key, e.values...)
		}
	}
	return c
}

// without removes values of a key. The key keeps its place for values that are added later. An empty first value
// removes the key: see AppendAll of siderolabs/go-procfs.
func (c cmdline) without(key string, values []string) cmdline {
	var left cmdline
	for _, a := range c {
		switch {
		case a.key != key:
		case values[0] == "":
			continue
		default:
			a.values = slices.DeleteFunc(slices.Clone(a.values), func(v string) bool { return slices.Contains(values, v) })
		}
		left = append(left, a)
	}
	return left
}

func (c cmdline) String() string {
	var list []string
	for _, a := range c {
		for _, value := range a.values {
			list = append(list, arg(a.key, value))
		}
	}
	return strings.Join(list, " ")
}

// shown formats arguments for people. It shows only the beginning of a URL: the rest may be a password or a token.
func shown(key string, values []string) string {
	const most = 80
	var list []string
	for _, value := range values {
		if u, err := url.Parse(value); err == nil && u.Host != "" {
			value = u.Scheme + "://" + u.Host + "/…"
		}
		if len(value) > most {
			value = value[:most] + "…"
		}
		list = append(list, arg(key, value))
	}
	return strings.Join(list, " ")
}

func argKeys(c cmdline) string {
	var list []string
	for _, a := range c {
		list = append(list, a.key)
	}
	return strings.Join(list, " ")
}

func arg(key, value string) string {
	if value == "" {
		return key
	}
	return key + "=" + value
}
