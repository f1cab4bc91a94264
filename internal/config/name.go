package config

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"
)

// nameOfType describes the values that a key accepts.
func nameOfType(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Duration]():
		return "a duration such as 10m"
	case reflect.TypeFor[VMIDRange]():
		return "a range such as 9000-9099"
	case reflect.TypeFor[Surge]():
		return "a number such as 1 or a percentage such as 10%"
	case reflect.TypeFor[Share]():
		return "a number such as 2 or a percentage such as 20%"
	case reflect.TypeFor[Canary]():
		return "true, false or the name of a node"
	case reflect.TypeFor[Storage]():
		return "on, off, or a section such as {linstor: off}"
	case reflect.TypeFor[ImageRef]():
		return "an image reference such as ghcr.io/acme/frr:1.7.15"
	case reflect.TypeFor[DiskSize]():
		return "a size such as 100G"
	case reflect.TypeFor[Schematic]():
		return "the path of a file"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	default:
		return "a section with keys"
	}
}

// nameOfNode describes a value of the file.
func nameOfNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a section"
	}
	switch n.ShortTag() {
	case "!!str":
		return "text"
	case "!!int", "!!float":
		return "the number " + bare(n.Value)
	case "!!bool":
		return bare(n.Value)
	case "!!timestamp":
		return "the date " + bare(n.Value)
	default:
		return "a value tagged " + quote(n.ShortTag())
	}
}

// bare is quote without the quotes.
func bare(s string) string { return strings.Trim(quote(s), `"`) }
