package cluster

import "slices"

// Each returns what of makes of each of the values; nil if there are none.
func Each[T, R any](values []T, of func(T) R) (out []R) {
	for _, v := range values {
		out = append(out, of(v))
	}
	return out
}

// Where returns those of the values that are so; nil if none is.
func Where[T any](values []T, is func(T) bool) (out []T) {
	for _, v := range values {
		if is(v) {
			out = append(out, v)
		}
	}
	return out
}

// TrueFirst compares what is so before what is not.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Find returns the first of the values that is the one; false if none is.
func Find[T any](values []T, is func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(values, is); i >= 0 {
		return values[i], true
	}
	return found, false
}
