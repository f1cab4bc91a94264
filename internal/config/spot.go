package config

import (
	"strconv"
	"strings"
)

// spot is where the decoder is in the file.
type spot struct{ path string }

func (s spot) key(name string) spot { return spot{join(s.path, plain(name))} }

func (s spot) entry(name string) spot { return spot{join(s.path, plain(name))} }

func (s spot) item(i int) spot { return spot{s.path + "[" + strconv.Itoa(i) + "]"} }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// plain is a key as shown in a path: quoted if it would break the line or the path.
func plain(key string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}
	if key == "" || len(key) > 60 || strings.ContainsFunc(key, special) {
		return quote(key)
	}
	return key
}
