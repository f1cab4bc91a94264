package factoryapi

import (
	"slices"
	"strings"
)

// args is a kernel command line as the imager puts it together: the values of
// a key stand side by side, where the key came first. See siderolabs/go-procfs.
type args []parameter

type parameter struct {
	key    string
	values []string // "" for a key that stands alone
}

// parseArgs reads "key=value" and "key".
func parseArgs(list []string) args {
	var c args
	for arg := range strings.FieldsSeq(strings.Join(list, " ")) {
		key, value, _ := strings.Cut(arg, "=")
		c.append(key, value)
	}
	return c
}

func (c args) index(key string) int {
	return slices.IndexFunc(c, func(p parameter) bool { return p.key == key })
}

func (c *args) append(key string, values ...string) {
	if i := c.index(key); i >= 0 {
		(*c)[i].values = append((*c)[i].values, values...)
		return
	}
	*c = append(*c, parameter{key: key, values: values})
}

func (c *args) set(p parameter) {
	if i := c.index(p.key); i >= 0 {
		(*c)[i] = p
		return
	}
	*c = append(*c, p)
}

// appendAll adds what is the same for every image.
func (c *args) appendAll(list []string) {
	for _, p := range parseArgs(list) {
		c.append(p.key, p.values...)
	}
}

// customize adds what a schematic wants: it replaces values of some keys, and
// takes away what it names with "-".
func (c *args) customize(list []string) {
	for _, p := range parseArgs(list) {
		switch {
		case len(p.key) > 1 && p.key[0] == '-':
			c.remove(p.key[1:], p.values)
		case p.key == "console" || p.key == "talos.platform":
			c.set(p)
		default:
			c.append(p.key, p.values...)
		}
	}
}

// remove takes values of a key away, or the key if none is named.
func (c *args) remove(key string, values []string) {
	i := c.index(key)
	switch {
	case i < 0:
	case values[0] == "":
		*c = slices.Delete(*c, i, i+1)
	default:
		(*c)[i].values = slices.DeleteFunc((*c)[i].values, func(v string) bool { return slices.Contains(values, v) })
	}
}

func (c args) String() string {
	var words []string
	for _, p := range c {
		for _, v := range p.values {
			if v == "" {
				words = append(words, p.key)
			} else {
				words = append(words, p.key+"="+v)
			}
		}
	}
	return strings.Join(words, " ")
}
