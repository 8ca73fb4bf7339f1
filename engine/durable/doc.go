package durable
