package cluster

import "slices"

// Each returns what of makes of each of the values; nil if there are none.
func Each[T, R any](values []T, of func(T) R) (out []R) {
	for _, v := range values {
		out = append(out, of(v))
	}
	return out
}

// Find returns the first of the values that is the one; false if none is.
func Find[T any](values []T, is func(T) bool) (found T, ok bool) {
	if i := slices.IndexFunc(values, is); i >= 0 {
		return values[i], true
	}
	return found, false
}
