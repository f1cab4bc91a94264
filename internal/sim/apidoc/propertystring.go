package apidoc

import (
	"maps"
	"slices"
	"strings"
)

// propertyString checks key=value,… like parse_property_string of PVE::JSONSchema; it is
// false for an invalid one.
func (c *check) propertyString(at string, keys properties, text string) bool {
	before := len(c.verdict.Violations)
	values := c.split(at, keys, text)
	if len(c.verdict.Violations) == before {
		c.object(at+".", &method{params: keys}, values)
	}
	return len(c.verdict.Violations) == before
}

func (c *check) split(at string, keys properties, text string) map[string]string {
	values := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, value, hasKey := strings.Cut(part, "=")
		switch {
		case !hasKey:
			c.setDefault(at, keys, values, part)
		case key == "" || value == "":
			c.wrong(at, "invalid format - missing key in comma-separated list property")
		default:
			c.set(at, keys, values, key, value)
		}
	}
	return values
}

func (c *check) set(at string, keys properties, values map[string]string, key, value string) {
	if _, twice := values[key]; twice {
		c.wrong(at, "invalid format - duplicate key in comma-separated list property: %s", key)
		return
	}
	p := keys[key]
	if p != nil && p.Alias != "" {
		if p.KeyAlias != "" {
			if _, twice := values[p.KeyAlias]; twice {
				c.wrong(at, "invalid format - key alias '%s' is already defined", p.KeyAlias)
				return
			}
			values[p.KeyAlias] = key
		}
		key = p.Alias
		p = keys[key]
	}
	if p == nil {
		c.wrong(at, "invalid format - invalid key in comma-separated list property: %s", shown(key))
		return
	}
	if p.Type == "boolean" {
		value = boolean(value)
	}
	values[key] = value
}

// setDefault assigns a value without a key to the default key.
func (c *check) setDefault(at string, keys properties, values map[string]string, value string) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !keys[key].DefaultKey {
			continue
		}
		if _, twice := values[key]; twice {
			c.wrong(at, "invalid format - duplicate key in comma-separated list property: %s", key)
			return
		}
		values[key] = value // unchanged, even a boolean: agent=on is refused
		return
	}
	c.wrong(at, "invalid format - value without key, but schema does not define a default key")
}

// boolean is parse_boolean: the spellings of 1 and 0.
func boolean(value string) string {
	switch strings.ToLower(value) {
	case "1", "on", "yes", "true":
		return "1"
	case "0", "off", "no", "false":
		return "0"
	}
	return value
}
