package factoryapi

import (
	"slices"
	"strings"
)

// args is a kernel command line as the imager assembles it: all values of a key are at its
// first position. See siderolabs/go-procfs.
type args []parameter

type parameter struct {
	key    string
	values []string // "" for a key without a value
}

// parseArgs parses "key=value" and "key".
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

// appendAll adds the arguments common to all images.
func (c *args) appendAll(list []string) {
	for _, p := range parseArgs(list) {
		c.append(p.key, p.values...)
	}
}

// customize adds a schematic's arguments: for some keys they replace the values, and a "-"
// removes them.
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

// remove removes values of a key, or without values the key.
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
