//go:build !amd64

package main

const getpidI386 = 0

// callI386 has no second entry to use on other machines.
func callI386(uintptr) int { return -1 }
