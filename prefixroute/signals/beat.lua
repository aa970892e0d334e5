-- One router's turn: replaces its share in the totals, takes out the shares of those that are
-- overdue, and returns the totals. What it costs does not depend on how many routers there are,
-- but once a minute, when the totals are added up anew.
--
-- KEYS: owners (hash: owner -> its share), deadlines (sorted set: owner by milliseconds),
--       totals (hash: field -> sum over the shares), members (hash; "@" is its version)
-- ARGV: owner, ttl_ms (0: it leaves), keep_ms, channel, part of the routers whose votes count,
--       share: a MessagePack array of fields and counts in turn, of which "n:ID" are requests,
--       "t:ID" tokens, "e:ID" a vote to eject, "f:FINGERPRINT"
-- Returns: milliseconds, routers, version of the members, totals (the same, but counts as text)

local owners, deadlines, totals, members = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, ttl_ms, keep_ms, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local part, share = tonumber(ARGV[5]), ARGV[6]
local add_up_every_ms = 60000
local at_once = 1000 -- Lua passes some thousand arguments at most

local time = redis.call('TIME') -- the hosts' clocks need not agree
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local changes = {}
local function count(packed, sign)
  local read, fields = pcall(cmsgpack.unpack, packed or '')
  if read and type(fields) == 'table' then
    for i = 1, #fields, 2 do
      changes[fields[i]] = (changes[fields[i]] or 0) + sign * fields[i + 1]
    end
  end
end

local before = redis.call('HGET', owners, owner)
if share ~= before then
  count(before, -1)
end
if ttl_ms > 0 then
  if share ~= before then
    count(share, 1)
    redis.call('HSET', owners, owner, share)
  end
  redis.call('ZADD', deadlines, now_ms + ttl_ms, owner)
else
  redis.call('HDEL', owners, owner)
  redis.call('ZREM', deadlines, owner)
end

for _, gone in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', now_ms, 'LIMIT', 0, 64)) do
  count(redis.call('HGET', owners, gone), -1)
  redis.call('HDEL', owners, gone)
  redis.call('ZREM', deadlines, gone)
end

local routers = redis.call('ZCARD', deadlines)
local due = redis.call('HGET', totals, '@')
local anew = routers <= 1 or not due or tonumber(due) <= now_ms
if anew then -- whatever became of a key meanwhile: from here on the totals are right
  changes = {}
  local all = redis.call('HGETALL', owners)
  for i = 1, #all, 2 do
    if redis.call('ZSCORE', deadlines, all[i]) then
      count(all[i + 1], 1)
    else
      redis.call('HDEL', owners, all[i])
    end
  end
  redis.call('DEL', totals)
  redis.call('HSET', totals, '@', now_ms + add_up_every_ms)
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, keep_ms)
  end
end

local fields = {}
for field, change in pairs(changes) do
  if change ~= 0 then
    fields[#fields + 1] = field
  end
end
local quorum = math.max(2, math.ceil(part * routers))
for first = 1, #fields, at_once do
  local last = math.min(#fields, first + at_once - 1)
  local sums = redis.call('HMGET', totals, unpack(fields, first, last))
  local stay, gone = {}, {}
  for i, text in ipairs(sums) do -- what is not there is false
    local field = fields[first + i - 1]
    local old = tonumber(text or 0)
    local sum = old + changes[field]
    if sum > 0 then
      stay[#stay + 1] = field
      stay[#stay + 1] = sum -- whole, and below 2^53
      local crosses = old < quorum and sum >= quorum and not anew
      if crosses and string.sub(field, 1, 2) == 'e:' then
        redis.call('PUBLISH', channel, field)
      end
    else
      gone[#gone + 1] = field
    end
  end
  if #stay > 0 then
    redis.call('HSET', totals, unpack(stay))
  end
  if #gone > 0 then
    redis.call('HDEL', totals, unpack(gone))
  end
end

local version = redis.call('HGET', members, '@') or '0'
return {now_ms, routers, version, cmsgpack.pack(redis.call('HGETALL', totals))}
